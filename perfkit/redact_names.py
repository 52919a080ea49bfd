r"""Names that `perfkit.redact` lets pass: those of public libraries and of the profiler itself.

    known_length(name)    how much of an identifier is made of public words
    is_known(name)        all of it
    is_library(word)      whether a C++ identifier says by its beginning which library it is of

Whatever is not here is hashed, so a missing name costs readability and never privacy. Add a name only if it
is public and cannot be a person, a host, a site or a product.

A pattern with an open end (`gemm\w*`) lets `gemm_of_my_company` pass. So names are judged word by word, cut at
underscores, case and digits, against the closed list of `redact_words.csv`: the words of torch's ops and kernels,
of the CUDA and HIP interfaces, and of the kernel names of cuBLAS, cuDNN, CUTLASS, CUB, NCCL, Inductor, Tensile...
A word alone proves nothing: a name of common words is still its owner's unless it begins like a library's.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Generator
from pathlib import Path


def words(text: str, *, separator: str | None = None) -> frozenset[str]:
    """Split a block of text into a set of words, or of phrases between `separator`s and line ends."""
    if separator is None:
        return frozenset(text.split())
    return frozenset(phrase.strip() for line in text.split("\n") for phrase in line.split(separator) if phrase.strip())


KNOWN_KEYS = words(
    """
    schemaVersion deviceProperties distributedInfo baseTimeNanoseconds displayTimeUnit traceEvents traceName
    trace_id host_name username hostname record_shapes profile_memory with_stack with_flops with_modules
    cupti_version cuda_runtime_version cuda_driver_version hip_runtime_version hip_driver_version
    roctracer_version nccl_version backend rank world_size pg_count pg_config pg_name pg_desc pg_size
    backend_config ranks ph cat name pid tid ts dur args id s bp cname scope tts tdur sort_index labels device
    stream context correlation queued cbid grid block registers bytes size kind src dst ptr kernel
    kernel_backend kernel_file kernel_hash kernel_kwargs kernel_name num_warps num_stages cuda_sync_kind
    wait_on_stream wait_on_cuda_event_record_corr_id wait_on_cuda_event_id fromDevice inDevice toDevice
    fromContext inContext toContext totalGlobalMem computeMajor computeMinor maxThreadsPerBlock
    maxThreadsPerMultiprocessor regsPerBlock regsPerMultiprocessor warpSize sharedMemPerBlock
    sharedMemPerMultiprocessor sharedMemPerBlockOptin numSms maxSharedMemoryPerMultiProcessor python_caller_id
    seq_num dtype version flops direction stream_id step priority __ignore_me activities stall busy tracker
    Device Bytes Addr Rank ID
    """
) | words(
    """
    Call stack | Collective name | Comms Id | Concrete Inputs | Device Id | Device Type | Ev Idx
    External id | Extra arguments | Fwd thread id | Global rank start | Global rank stride | Group size
    In msg nelems | In split size | Input Dims | Input Strides | Input dims | Input names | Input type
    Kernel Occupancy | Module Hierarchy | Op count | Out msg nelems | Out split size | Output dims
    Output names | Output type | Process Group Description | Process Group ID | Process Group Name
    Process Group Ranks | Profiler Event Index | Python id | Python module id | Python parent id
    Python thread | Record function id | Sequence number | Total Allocated | Total Reserved
    Trace iteration | Trace name | blocks per SM | warps per SM | est. achieved occupancy % | external id
    external ts | mem size | memory bandwidth (GB/s) | registers per thread | shared memory | Src Rank
    Dst Rank | Seq | Kwinputs | Is Async | graph id | graph node id | node id | GPU time | Function Id
    stream id | P2P | isAsynchronizedOp
    """,
    separator="|",
)
"""Keys that torch.profiler and Kineto write. Any other key was added by a person or a site, and is hashed."""

METRIC_KEY = re.compile(r"(?:sm|smsp|dram|lts|l1tex|gpc|gpu|pcie|nvl\w*|idc|fbpa)__[\w.]+")
VERSION_KEYS = re.compile(r"version|\w+_version")
VERSION = re.compile(r"\d+(?:\.\d+){0,3}(?:[.+-](?:cu|rocm|cpu|git|rc|a|b|post|dev)?[0-9a-f]*)*")
KEY_KINDS = {
    "host_name": "host",
    "hostname": "host",
    "username": "user",
    "traceName": "path",
    "kernel_file": "path",
    "kernel_hash": "hash",
    "trace_id": "id",
    "pg_name": "pg",
    "pg_desc": "pg",
    "Process Group Name": "pg",
    "Process Group Description": "pg",
    "Module Hierarchy": "module",
    "cat": "cat",
}
"""What a string under this key is called when it is hashed."""
ALWAYS_HASHED = frozenset(("host_name", "hostname", "username", "traceName", "kernel_file", "kernel_hash", "trace_id"))
NAME_KEYS = frozenset(
    ("name", "kernel", "kernel_name", "Trace name", "Input type", "Output type", "Concrete Inputs", "dtype")
)
"""Keys whose strings are looked into: a library's C++ symbol keeps its known parts."""

PLAIN = re.compile(
    r"|-?\d{1,20}(?:\.\d+)?(?:[eE][+-]?\d+)?|0x[0-9a-fA-F]+|true|false|True|False|None|null|nan|-?inf|NaN|-?Infinity"
    r"|[\[(](?:[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?![\d.\w])|[\s,\[\]()]|True|False|None)*[\])]"
    r"|\d+ bytes|grid\([\d, ]*\)|(?:cuda|cpu|hip|xpu|mtia)(?::\d+)?"
    r"|(?:(?:[XYZR]\d?_?BLOCK|BLOCK(?:_SIZE)?_[MNK]|GROUP(?:_SIZE)?_M|num_warps|num_stages)=\d+,?)+"
    r"|(?:(?:cpu|cuda|xpu|hip):(?:nccl|gloo|mpi|ucc|xccl),?)+"
)
"""Numbers, lists of numbers, and the few other forms that carry no name."""

SAFE_STRINGS = words(
    """
    X B E i I C M s t f b n e P N D O R g p ms ns nccl gloo mpi ucc xccl CPU GPU CUDA Spans Traces triton python
    python3 ac2g async_cpu_to_gpu async_gpu async launch fwdbwd forward_backward cpu_op user_annotation
    gpu_user_annotation kernel gpu_memcpy gpu_memset cuda_runtime cuda_driver cuda_sync cuda_event
    cuda_profiler_range python_function overhead Trace cpu_instant_event mtia_runtime mtia_ccp_events
    mtia_insight mtia_workloadd xpu_runtime xpu_driver privateuse1_runtime privateuse1_driver collective_comm
    glow_runtime hpu_op Kernel Operator Runtime Memcpy Memset Communication PyTorch gc process_name
    process_sort_index thread_name thread_sort_index process_labels [memory] __missing__ __cupti_profiler__
    record_param_comms Float Double Half BFloat16 Int Long Short Char Byte Bool Float8_e4m3fn Float8_e5m2 Scalar
    ScalarList TensorList GenericList Tensor Device DtoD DtoH HtoD HtoH PtoP HOST_TO_DEVICE DEVICE_TO_HOST
    user_scope undefined default_pg allreduce allgather _allgather_base _reduce_scatter_base reduce_scatter
    broadcast reduce gather scatter all_to_all all_to_allv send recv barrier wait alltoall alltoallv all_gather
    all_reduce allgather_into_tensor_coalesced reduce_scatter_tensor_coalesced allreduce_coalesced forward
    backward optimizer loss dataloader step zero_grad CompiledFunction CompiledFunctionBackward TorchDynamo sum
    mean none dma_request DMA_REQUEST recordEvent synchronize synchronizeStream event_record event_wait pe_exe merge
    remote detach detach_ torch.distributed.ddp.reducer::copy_bucket_to_grad
    """
) | frozenset(
    (
        "PyTorch Profiler",
        "Iteration Start: PyTorch Profiler",
        "Iteration Start: __cupti_profiler__",
        "Record Window End",
        "Stream Wait Event",
        "Context Sync",
        "Stream Sync",
        "Event Sync",
        "Command Buffer Full",
        "Lazy Function Loading",
        "Unrecognized",
        "Activity Buffer Request",
        "Buffer Flush",
        "Resource",
        "Instrumentation",
        "TorchDynamo Cache Lookup",
        "Pregraph bytecode",
        "Python GC",
        "AOTDispatcher Runtime Wrapper Prologue",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "long int",
        "unsigned char",
        "signed char",
        "short int",
        "short unsigned int",
        "Dispatch Kernel",
        "Dispatch Task",
    )
)

_DEVICE = (
    r"[A-Z]{0,3}\d{1,4}[A-Z]{0,2}(?:-(?:SXM\d?|PCIE|PCIe|DGXS|NVL|PG\d{3}|\d{1,4}GB|\d{3}|[A-Z]?\d?C))*|\d{1,4}GB|HBM\d?e?"
    r"|OAM|PCIe|NVL|VF|Instinct|RTX|GTX|Ti|SUPER|Super|Ada|Generation|Radeon|GeForce|Graphics|Tesla|TITAN|V|X|XT|XTX|PRO|Pro"
    r"|Max|Max-Q|Laptop|GPU|Blackwell|Server|Workstation|Edition|Data|Center|Arc|Quadro|\(R\)|\(TM\)|Series"
)
_MEMORY = r"(?:Device|Pinned|Pageable|Managed|Array|Host|Unknown|Device Static|Managed Static)"
LIBRARY_NAME = re.compile(
    r"ProfilerStep#?\d*|(?:PyTorch Profiler|__cupti_profiler__) \(-?\d+\)|Torch-Compiled Region: \d+/\d+"
    r"|(?:stream|GPU|thread) \d+ ?|Stream \d+(?: Submission Queue)?|python\d?(?:\.\d+)?"
    r"|[Tt]hread \d+(?: \((?:python\d?(?:\.\d+)?|pt_main_thread|pt_autograd_\d+|cuda-EvtHandlr)\))?"
    rf"|Mem(?:cpy|set)(?: (?:[HDAP]to[HDAP]|Unknown))?(?: \({_MEMORY}(?: -> {_MEMORY})?\))?"
    rf"|(?:NVIDIA|Tesla|Quadro|GeForce|AMD|Intel(?:\(R\))?)(?: (?:{_DEVICE}))+"
)
"""Marks of the profiler and names of devices."""

NAMESPACES = words(
    """
    aten prim prims c10d c10d_functional _c10d_functional _c10d_functional_autograd c10d_functional_autograd fbgemm
    fbgemm_gpu quantized _quantized mkldnn mkldnn_prepacked onednn torchvision inductor xla flash_attn flash_attn_2
    flash_attn_3 _vllm_fa2_C _vllm_fa3_C _C _C_cache_ops _C_custom_ar _moe_C _rocm_C rocm symm_mem fsdp FSDP
    torch_tensorrt bitsandbytes transformer_engine
    at c10 torch std cub thrust cutlass cute cudnn cask xmma xmma_new nccl rccl cuda at_cuda_detail ck ck_tile rocprim
    hipcub rocrand hiprand magma flash pytorch_flash tensorrt_llm apex __gnu_cxx caffe2 gloo cooperative_groups
    epilogue multi_tensor_apply flashinfer vllm cublasLt nvinfer1 moe
    """
)
"""C++ and operator namespaces of libraries; what they qualify stays as far as its words are known."""

LIBRARY_STARTS = words(
    """
    cuda cu hip nccl rccl cublas cudnn hipblas hipblaslt rocblas roctracer miopen MIOpen magma cutlass xmma cask cunn
    ampere volta turing hopper blackwell maxwell pascal kepler sm nvjet Cijk triton_poi_fused triton_red_fused
    triton_per_fused triton_tem_fused triton_for_fused triton_spl_fused triton_mix_fused triton_poi triton_red
    triton_per triton_tem triton_mm triton_bmm triton_for triton_spl triton_unk triton_
    gemm sgemm dgemm hgemm igemm cgemm zgemm gcgemm gemv gemmk gemvNSP gemvNS splitKreduce splitK scal_kernel
    dot_kernel reduce_1Block fft fft1d fft2d vector_fft regular_fft winograd batched_transpose SubTensorOp
    implicit_convolve explicit_convolve wgrad_alg dgrad_alg dgrad_engine dgrad2d nchwTo nhwcTo flip_filter
    pointwise_mult_and_sum transpose_readWrite fmha flash_fwd flash_bwd flash_attn hiprand rocrand rocprim
    softmax_warp split_embedding permute_pooled_embs bounds_check_indices linearize_index indexing_backward
    StoreWithCast LoadWithCast multi_tensor_apply TensorListMetadata multimem one_shot_all_reduce
    two_shot_all_reduce two_shot_reduce_scatter cross_device_reduce CatArrayBatchedCopy elementwise_kernel
    vectorized_elementwise unrolled_elementwise reduce_kernel DeviceScan DeviceReduce DeviceRadixSort DeviceSelect
    TrivialOffsetCalculator OffsetCalculator Policy internal::gemvx compute_cuda_kernel recat_copy_async
    kernel_conv_params kernel_grad_params bmm_Bfloat bmm_Mx bmm_E
    """
)
"""How an identifier without a namespace begins if it is a library's."""

SYMBOL_WORDS = words(
    """
    void const volatile unsigned signed long int short char bool float double half float2 float4 int2 int3 int4 uint2
    uint4 __half __half2 __nv_bfloat16 __nv_bfloat162 __hip_bfloat16 __nv_bool __nv_fp8_e4m3 __nv_fp8_e5m2 uint int8
    uint8 int16 uint16 int32 uint32 int64 uint64 int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t
    size_t lambda operator anonymous namespace unnamed type instance true false enum struct auto decltype nullptr
    Params Tensor value Type AdamFunctor adamMode_t HIP_vector_type function_traits result_type value_type biasType
    exists StoreWithoutCast LoadWithoutCast FixedDivisor PtxReduceByKeyPolicy curandStatePhilox4_32_10
    """
)
"""Words of a C++ symbol that stay by themselves."""
NUMBER = re.compile(r"(?:\d+x?)+(?:u|ul|ull|l|f|L|U|UL)?|\d+e\d+|0x[0-9a-fA-F]+")

_STARTS = re.compile(rf"_*(?:{'|'.join(sorted(LIBRARY_STARTS, reverse=True))})(?![a-z])")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\Wa-zA-Z\d_]+")


def _read_words() -> frozenset[str]:
    with Path(__file__).with_name("redact_words.csv").open(encoding="utf-8", newline="") as file:
        return frozenset(word for row in csv.DictReader(file) for word in row["words"].split())


WORDS = _read_words()


def known_length(name: str, start: int = 0) -> int:
    """Return where the first word begins that nobody knows; single letters and digits name nobody."""
    for match in _WORD.finditer(name, start):
        word = match.group()
        if word.lower() not in WORDS and not (len(word) == 1 and word.isascii()):
            return match.start()
    return len(name)


def is_known(name: str) -> bool:
    """Say whether every word of a name is public."""
    return known_length(name) == len(name)


def is_library(word: str) -> bool:
    """Say whether an unqualified identifier begins like those of a library."""
    return _STARTS.match(word) is not None


FORM_WORDS = words("built-in method function object CompiledFxGraph engine evaluate_function autograd Optimizer.step")
"""What is written around hashed names."""

KERNEL_HINTS = (
    "xccl", "gemm", "attention", "conv2d", "layer_norm", "embedding", "optimizer", "copy_kernel", "reduce",
    "gelu", "scal_kernel", "sort", "moe::",
)  # fmt: skip
"""Words that say what a kernel does. One of them goes in front of a hashed name that said so itself."""

PACKAGES = words(
    """
    torch torchvision torchaudio torchdata torchrec torchtitan torchao functorch triton numpy scipy pandas
    transformers accelerate datasets tokenizers safetensors huggingface_hub peft trl deepspeed megatron apex
    flash_attn xformers lightning lightning_fabric pytorch_lightning torchmetrics composer vllm fbgemm_gpu
    bitsandbytes einops timm tqdm wandb tensorboard PIL fsspec pyarrow hydra omegaconf ray sklearn
    transformer_engine sglang flashinfer nvtx pydantic requests urllib3
    """
)
SURE_PACKAGES = words(
    "torch torchvision torchaudio functorch triton numpy scipy pandas pyarrow safetensors huggingface_hub tqdm"
)
"""Those that a frame may name without the site-packages before it: torch.profiler cuts the folders of `sys.path` off,
so that `datasets/x.py` may as well be a folder of the user. These are no names for one's own code."""
STDLIB = words(
    """
    threading contextlib functools multiprocessing concurrent selectors socket json copy copyreg collections
    random typing enum abc weakref logging re os posixpath genericpath runpy subprocess tempfile warnings
    inspect importlib asyncio shutil pathlib pickle struct ast tokenize linecache traceback dataclasses operator
    heapq bisect uuid hashlib gzip zipfile ctypes unittest argparse socketserver http urllib ssl textwrap
    codecs locale reprlib sre_parse sre_compile typing_extensions _collections_abc queue types string
    """
)
"""Modules and packages of Python."""
STDLIB_FILES = STDLIB | words(
    """
    multiprocessing/connection multiprocessing/context multiprocessing/queues multiprocessing/process
    multiprocessing/popen_fork multiprocessing/popen_spawn_posix multiprocessing/spawn multiprocessing/synchronize
    multiprocessing/util multiprocessing/reduction multiprocessing/resource_tracker multiprocessing/resource_sharer
    multiprocessing/shared_memory multiprocessing/managers multiprocessing/pool concurrent/futures/thread
    concurrent/futures/process concurrent/futures/_base json/__init__ json/encoder json/decoder json/scanner
    collections/__init__ collections/abc importlib/__init__ importlib/_bootstrap importlib/_bootstrap_external
    importlib/util importlib/machinery asyncio/base_events asyncio/events asyncio/runners asyncio/tasks
    asyncio/futures asyncio/locks asyncio/queues asyncio/selector_events asyncio/unix_events logging/__init__
    logging/handlers http/client urllib/parse urllib/request ctypes/__init__ re/__init__ re/_parser re/_compiler
    pathlib/__init__ pathlib/_local zipimport io stat site <string> <stdin>
    """
)
"""Files that may stand without their folder; the function in them is hashed unless it is one of `FUNCTIONS`: a
`logging.py` may be the user's."""
FUNCTIONS = words(
    """
    <module> <lambda> <listcomp> <dictcomp> <setcomp> <genexpr> forward backward step run wait join start get put
    inner wrapper helper acquire release notify submit result select poll recv send close
    _bootstrap _bootstrap_inner _bootstrap_external _find_and_load _worker _recv _send _poll dumps loads encode decode
    copy deepcopy _reconstruct getenv
    __init__ __new__ __del__ __call__ __enter__ __exit__ __aenter__ __aexit__ __iter__ __next__ __aiter__ __anext__
    __await__ __len__ __getitem__ __setitem__ __delitem__ __contains__ __missing__ __getattr__ __getattribute__
    __setattr__ __delattr__ __get__ __set__ __delete__ __set_name__ __dir__ __repr__ __str__ __bytes__ __format__
    __hash__ __bool__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__
    __mul__ __rmul__ __imul__ __matmul__ __rmatmul__ __imatmul__ __truediv__ __rtruediv__ __itruediv__ __floordiv__
    __rfloordiv__ __mod__ __rmod__ __divmod__ __pow__ __rpow__ __lshift__ __rshift__ __and__ __rand__ __iand__
    __or__ __ror__ __ior__ __xor__ __neg__ __pos__ __abs__ __invert__ __int__ __float__ __complex__ __index__
    __round__ __reversed__ __copy__ __deepcopy__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __newobj__
    __init_subclass__ __class_getitem__ __subclasshook__ __instancecheck__ __subclasscheck__ __prepare__
    __post_init__ __fspath__ __sizeof__ __array__ __torch_function__ __torch_dispatch__ __build_class__ __import__
    """
)
"""Functions whose names say nothing of their owner."""
MODULES = words(
    """
    Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d BatchNorm1d BatchNorm2d
    BatchNorm3d SyncBatchNorm LayerNorm GroupNorm RMSNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d Embedding
    EmbeddingBag Dropout Dropout1d Dropout2d Dropout3d ReLU ReLU6 GELU SiLU Mish ELU SELU CELU LeakyReLU PReLU
    Sigmoid Tanh Softmax LogSoftmax Softplus Hardswish Hardtanh Hardsigmoid Identity Flatten Unflatten MaxPool1d
    MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
    AdaptiveMaxPool2d Sequential ModuleList ModuleDict ParameterList ParameterDict MultiheadAttention
    Transformer TransformerEncoder TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer LSTM GRU
    RNN LSTMCell GRUCell RNNCell CrossEntropyLoss MSELoss L1Loss NLLLoss BCELoss BCEWithLogitsLoss KLDivLoss
    SmoothL1Loss HuberLoss Upsample PixelShuffle ZeroPad2d ConstantPad2d Bilinear DataParallel
    DistributedDataParallel FullyShardedDataParallel OptimizedModule ScriptModule RecursiveScriptModule
    GraphModule ResNet Bottleneck BasicBlock
    """
)
OPTIMIZERS = words(
    """
    Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD LBFGS NAdam RAdam RMSprop Rprop SGD SparseAdam Muon
    """
)
TORCH_FUNCTIONS = words(
    """
    matmul linear relu relu_ zeros ones empty zeros_like ones_like empty_like full arange cat stack embedding
    layer_norm rms_norm batch_norm group_norm conv1d conv2d conv3d max_pool2d avg_pool2d adaptive_avg_pool2d
    dropout softmax log_softmax cross_entropy_loss nll_loss mse_loss scaled_dot_product_attention add mul sub
    div pow mean sum sqrt rsqrt exp log sin cos tanh sigmoid gelu silu split split_with_sizes chunk view reshape
    transpose permute flatten squeeze unsqueeze index_select gather scatter where clamp max min argmax topk bmm
    addmm einsum sort cumsum tril triu is_grad_enabled is_tensor
    """
)
"""Functions of torch itself that appear as built-ins."""
PYTHON_METHODS = frozenset(
    name
    for owner in (list, dict, set, tuple, str, bytes, int, float, frozenset, deque, Generator)
    for name in dir(owner)
)
BUILTIN_OWNERS = words(
    """
    Tensor Parameter list dict set tuple str bytes int float frozenset generator deque collections _thread _io
    _hashlib _contextvars _abc mappingproxy FunctionMeta _ParameterMeta
    """
)
