r"""Names that `perfkit.redact` lets pass: those of public libraries and of the profiler itself.

    known_length(name)    how much of an identifier is made of public words
    is_known(name)        all of it
    is_library(word)      whether a C++ identifier says by its beginning which library it is of
    is_telling(text)      whether its digits may be an address, a date, a phone number or a key
    is_group(text)        whether the name of a process group says only what it is for

Whatever is not here is hashed, so a missing name costs readability and never privacy. Add a name only if it
is public and cannot be a person, a host, a site or a product.

A pattern with an open end (`gemm\w*`) lets `gemm_of_my_company` pass. So names are judged word by word, cut at
underscores, case and digits, against the closed list of `words.csv`: the words of torch's ops and kernels,
of the CUDA and HIP interfaces, and of the kernel names of cuBLAS, cuDNN, CUTLASS, CUB, NCCL, Inductor, Tensile...
A word alone proves nothing: a name of common words is still its owner's unless it begins like a library's.
Words of torch's ops serve names of ops, those of Tensile and MIOpen only names that begin like theirs: they are so
short that they may be anything.

Patterns here are linear by construction: no repetition of something that may itself match a text in two ways.
"""

from __future__ import annotations

import csv
import re
import sysconfig
from collections import deque
from collections.abc import Generator
from functools import cache
from importlib import import_module
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
    Device Bytes Addr Rank ID cid torch_version perfkit_synthetic
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

METRIC_KEY = re.compile(r"(?:sm|smsp|dram|lts|l1tex|gpc|gpu|pcie|nvl\w*|idc|fbpa|kineto)__[a-z]\w*(?:\.[a-z]\w*)*")
VERSION_KEYS = re.compile(r"version|\w+_version")
VERSION = re.compile(
    r"\d{1,6}(?:\.\d{1,5}){0,2}(?:-[0-9a-f]{6,12})?(?:a|b|rc)?\d{0,3}(?:\.(?:dev|post)\d{1,8})?"
    r"(?:\+(?:cu|rocm|cpu|xpu|git)?[0-9a-f]{0,12}(?:\.\d{1,2}){0,2}(?:\.nv\d\d\.\d\d)?)?"
)
"""At most three numbers: four may be an address."""
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

LONG_NUMBER_KEYS = words(
    """
    Addr | Bytes | correlation | dur | External id | external id | external ts | graph id | graph node id | id | ptr
    Python id | Python parent id | Python module id | Sequence number | Total Allocated | Total Reserved | ts
    Comms Id | Concrete Inputs
    """,
    separator="|",
)
"""Where a text may be a number of more than ten digits; elsewhere such a number is a phone or an account."""
_NUMBER = r"[+-]?\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?(?![\d.\w])"
PLAIN = re.compile(
    rf"|{_NUMBER}|0x[0-9a-fA-F]{{1,16}}|true|false|True|False|None|null|nan|-?inf|NaN|-?Infinity"
    rf"|[\[(](?:{_NUMBER}|[\s,\[\]()]|True|False|None)*[\])]"
    r"|\d{1,12} bytes|grid\([\d, ]*\)|(?:cuda|cpu|hip|xpu|mtia)(?::\d{1,3})?"
    r"|(?:(?:[XYZR]\d?_?BLOCK|BLOCK(?:_SIZE)?_[MNK]|GROUP(?:_SIZE)?_M|LOWER_UPPER|num_warps|num_stages)=\d{1,9},?)+"
    r"|(?:(?:cpu|cuda|xpu|hip):(?:nccl|gloo|mpi|ucc|xccl),?)+"
)
LONG_NUMBER = re.compile(r"[+-]?\d{11,}")
"""Numbers, lists of numbers, and the few other forms that carry no name."""

SAFE_STRINGS = (
    words(
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
    perfkit.gc perfkit.data perfkit.checkpoint perfkit.log
    remote detach detach_ torch.distributed.ddp.reducer::copy_bucket_to_grad CheckpointFunctionBackward
    torch::autograd::CopyBackwards torch::autograd::CopySlices _DDPSink _DDPSinkBackward INVALID
    XXT_kernel ba_plus_cAA_kernel attn_fwd recmetrics_update metrics:publish metrics:update metrics:add
    forward-compute backward-compute forward-recv forward-send backward-recv backward-send forward-backward
    forward-send-forward-recv forward-send-backward-recv backward-send-forward-recv backward-send-backward-recv
    forward-backward-send-forward-backward-recv batch-generator optimizer-copy-to-main-grad
    optimizer-unscale-and-check-inf optimizer-clip-main-grad optimizer-count-zeros optimizer-inner-step
    optimizer-copy-main-to-model-params embedding-grads-all-reduce layernorm-grads-all-reduce grads-all-reduce
    non-tensor-parallel-grads-all-reduce conditional-embedder-grads-all-reduce all-grads-sync grads-reduce-scatter
    params-all-gather save-checkpoint load-checkpoint save-checkpoint-non-persistent
    """
    )
    | words(
        """
    ## forward ## | ## backward ## | ## optimizer ## | ## zero_grad ## | ## load_batch ## | ## data_load ##
    ## copy_batch_to_gpu ## | ## wait_for_batch ## | ## start_sparse_data_dist ## | ## wait_sparse_data_dist ##
    ## sparse_data_dist ## | ## sdd_preprocess_splits ## | ## sdd_preprocess_tensors ## | ## sdd_wait_tensors ##
    ## recmetrics_update ## | ## metrics:publish ## | ## metrics:update ## | ## metrics:add ## | ## Request wait() ##
    ## RecMetricModule:update ## | ## RecMetricModule:compute ## | ## AUCMetric:update ## | ## CTRMetric:update ##
    ## MAEMetric:update ## | ## NEMetric:update ## | ## CalibrationMetric:update ## | ## MSEMetric:update ##
    ## alltoall_fwd_single ## | ## alltoall_bwd_single ## | ## reduce_scatter_base ##
    ## all2all_data:kjt splits ## | ## all2all_data:kjt lengths ## | ## all2all_data:kjt values ##
    ## all2all_data:kjt weights ## | ## all2all_data:lengths ## | ## all2all_data:lengths_wait ##
    ## all2all_data:indices_weights ## | ## all2all_data:recat_permute_gen ## | ## all2all_data:recat_values ##
    ## all2all_data:permute_sparse_features ## | ## KJTListAwaitable wait() ## | ## KJTListSplitsAwaitable wait() ##
    ## FusedKJTListSplitsAwaitable wait() ## | ## KJTSplitsAllToAllMeta wait() ## | ## KJTAllToAll wait() ##
    ## KJTAllToAllSplitsAwaitable wait() ## | ## KJTAllToAllTensorsAwaitable wait() ##
    ## SplitsAllToAllAwaitable wait() ## | ## PooledEmbeddingsAwaitable wait() ##
    ## PooledEmbeddingArchAwaitable wait() ## | ## SequenceEmbeddingsAwaitable wait() ##
    """,
        separator="|",
    )
    | frozenset(
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
            "unsigned int",
            "Trace PyTorch Profiler",
            "Trace __cupti_profiler__",
            "enqueueCommand memcpyDtoHAsync",
            "enqueueCommand memcpyHtoDAsync",
            "enqueueCommand waitOnEvent",
            "unsigned char",
            "signed char",
            "short int",
            "short unsigned int",
            "Dispatch Kernel",
            "Dispatch Task",
        )
    )
)

_DEVICE = (
    r"[A-Z]{0,3}\d{1,4}[A-Z]{0,2}(?: ?/ ?MI\d{3}X?)?"
    r"(?:-(?:SXM\d?|PCIE|PCIe|DGXS|NVL|PG\d{3}|\d{1,4}GB|\d{3}|[A-Z]?\d?C|3e)){0,3}|HBM\d?e?"
    r"|OAM|PCIe|NVL|VF|Instinct|RTX|GTX|Ti|SUPER|Super|Ada|Generation|Radeon|GeForce|Graphics|Tesla|TITAN|V|X|XT|XTX|PRO|Pro"
    r"|Max|Max-Q|Laptop|GPU|Blackwell|Server|Workstation|Edition|Data|Center|Arc|Quadro|\(R\)|\(TM\)|Series"
)
_MEMORY = r"(?:Device|Pinned|Pageable|Managed|Array|Host|Unknown|Device Static|Managed Static)"
_THREAD = (
    r"(?:pt_(?:main_thread|autograd_\d{1,3}|data_worker|data_pin|nccl_watchdg|nccl_heartbt|elastic)|cuda-EvtHandlr)"
)
LIBRARY_NAME = re.compile(
    r"ProfilerStep#?\d{0,10}|(?:PyTorch Profiler|__cupti_profiler__) \(-?\d{1,10}\)"
    r"|Torch-Compiled Region: \d{1,6}/\d{1,6}(?: \(\d{1,6}\))?"
    r"|(?:stream|GPU|MTIA) \d{1,10} ?|Stream \d{1,10}(?: Submission Queue)?|python\d?(?:\.\d{1,2})?"
    rf"|[Tt]hread \d{{1,16}} ?(?:\((?:python\d?(?:\.\d{{1,2}})?|{_THREAD})\))?|{_THREAD}"
    rf"|Mem(?:cpy|set)(?: (?:[HDAP]to[HDAP]|Unknown))?(?: \({_MEMORY}(?: -> {_MEMORY})?\))?"
    rf"|(?:NVIDIA|Tesla|Quadro|GeForce|AMD|Intel(?:\(R\))?)(?: (?:{_DEVICE})){{1,10}}"
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
    epilogue multi_tensor_apply flashinfer vllm cublasLt nvinfer1 moe PyTorchMemEffAttention
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
    kernel_conv_params kernel_grad_params bmm_Bfloat bmm_Mx bmm_E amd_rocclr
    SplitLookupFunction SplitNoBagLookupFunction
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
    exists Flash_fwd_params Flash_bwd_params Flash_fwd_kernel_traits Flash_bwd_kernel_traits Flash_kernel_traits
    AdamFunctorMaster FusedAdamMathFunctor ADAM_MODE ADAM_MODE_0 ADAM_MODE_1 AdamCapturableFunctor
    StoreWithoutCast LoadWithoutCast FixedDivisor PtxReduceByKeyPolicy curandStatePhilox4_32_10
    """
)
"""Words of a C++ symbol that stay by themselves."""
NUMBER = re.compile(r"\d{1,6}(?:x\d{1,6})*x?(?:u|ul|ull|l|f|L|U|UL)?|0x[0-9a-fA-F]{1,8}")
BETWEEN = re.compile(
    r"(?:[<>(),*&\[\]{}=!|;~']|::|->|#\d{1,3}(?!\d)| |-?(?:0|[1-9]\d{0,6})(?![\w.:+-]| +-?\d)|\.kd\b)*"
)
"""What may stand around the identifiers of a C++ symbol: its punctuation and plain numbers, but no `.`, `:`, `+`, `/`
or `@`, which would make an address of numbers."""
_TELLING = re.compile(
    r"\d{8,}|(?<!\d)\d{1,3}(?:\.\d{1,3}){3}|(?<![\da-zA-Z])\d{1,3}(?:[_-]\d{1,3}){3}(?!\d)"
    r"|(?<!\d)\d{3}[-_. ]\d{3,4}[-_. ]\d{4}(?!\d)|(?<!\d)(?:19|20)\d\d[-_.]\d\d[-_.]\d\d(?!\d)"
    r"|(?<![\da-fA-F])(?!0d1d2)(?=[a-fA-F]*\d)[\da-fA-F]{16,}"
)
"""Long numbers, four short ones, phone numbers, dates, long hexadecimal numbers; 0d1d2… ends kernels of old Triton."""


def is_telling(text: str) -> bool:
    """Say whether a text holds digits that may be somebody's: an address, a date, a phone number, a key."""
    return _TELLING.search(text) is not None


_STARTS = re.compile(rf"_*(?:{'|'.join(sorted(LIBRARY_STARTS, reverse=True))})(?![a-z])")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\Wa-zA-Z\d_]+")


def _read_words() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    with Path(__file__).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["library"], set()).update(row["words"].split())
    return {library: frozenset(of_library) for library, of_library in found.items()}


_LISTS = _read_words()
NODES = _LISTS.pop("autograd nodes")
"""Nodes of torch's autograd, without `Backward` and the number; some are of old versions of torch."""
_TORCH_BUILTINS = _LISTS.pop("torch functions")
WORDS = frozenset().union(*_LISTS.values())
_OP_WORDS = _LISTS["torch ops"]
_COMMON_WORDS = WORDS - {word for word in _LISTS["ROCm: Tensile, MIOpen, Composable Kernel"] if len(word) < 5}
_OF_OPS = re.compile(r"(?:aten|prims?)::")
_OF_ROCM = re.compile(
    r"_*(?:Cijk|igemm|ck|kernel_|miopen|MIOpen|roc|amd_rocclr|hip|naive_|batched_|gridwise|wino|Sp3|StoreWithCast|sm\d|fft|nchw|nhwc)"
)


def known_length(name: str, start: int = 0) -> int:
    """Return where the first word begins that nobody knows; single letters and digits name nobody."""
    vocabulary = _OP_WORDS if _OF_OPS.match(name) else WORDS if _OF_ROCM.match(name) else _COMMON_WORDS
    for match in _WORD.finditer(name, start):
        word = match.group()
        if word.lower() not in vocabulary and not (len(word) == 1 and word.isascii()):
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
    "elementwise", "sort", "moe::",
)  # fmt: skip
"""Words that say what a kernel does. One of them goes in front of a hashed name that said so itself."""
HOST_HINTS = ("dataloader", "save_checkpoint", "clip_grad_norm", "compile_fx", "log_metrics")
"""The same of what the host does; in front of a file they are a folder."""
ROLE_HINTS = (("barrier", r"barrier"), ("recv", r"(?<![a-z])i?recv|receive_(?:forward|backward)"))
PRECISIONS = (
    ("fp8", r"e4m3|e5m2|fp8|float8"), ("bf16", r"bf16|bfloat16|nvjet_t"),
    ("fp16", r"fp16|float16|_h\d*gemm|h884|h1688|hgemm|half|f16|nvjet_h"),
    ("tf32", r"tf32|s1688|nvjet_s"),
    ("fp32", r"sgemm|scudnn|fp32|float32|f32f32|<float\b"), ("int8", r"int8|imma|s8s8"),
)  # fmt: skip
"""What the name of a matrix kernel says about its inputs; the first that matches, as in perfkit.analysis."""
TENSOR_CORES = ("xf32", r"tf32|xf32|s1688|tensorop_s|nvjet_s")
"""Tensor cores multiply what the op's inputs call fp32."""

_GROUP_WORDS = words(
    """
    mesh parallel group groups pg with and or of in mod no gloo nccl comm process default world undefined none
    pp dp fsdp cp tp ep etp edp vpp sp mp pipeline pipe stage ddp data replicate shard zero hsdp context sequence
    ulysses tensor model expert experts inner outer intra inter node partial replica distributed optimizer instance
    embedding position hierarchical amax batch loss dense moe sparse tensors
    """
)
_GROUP = re.compile(r"[A-Za-z]+(?:[-_:. ]+[A-Za-z]+)*(?:[-_:. ]\d{1,4})?")


def is_group(text: str) -> bool:
    """Say whether the name of a process group says only which axis of parallelism it is: `mesh_dp_shard`, `tp:0`."""
    return _GROUP.fullmatch(text) is not None and _GROUP_WORDS.issuperset(re.findall("[a-z]+", text.lower()))


LABELS = words(
    """
    all_reduce allreduce all_reduce_coalesced allreduce_coalesced all_gather allgather _all_gather_base
    _allgather_base all_gather_into_tensor all_gather_into_tensor_coalesced allgather_into_tensor_coalesced
    allgather_coalesced _all_gather_coalesced reduce_scatter _reduce_scatter_base reduce_scatter_tensor
    reduce_scatter_tensor_coalesced broadcast _broadcast_oop broadcast_oop reduce _reduce_oop gather scatter
    all_to_all alltoall all_to_allv alltoall_base alltoallv all_to_all_single send recv recv_any_source send_recv
    barrier monitored_barrier coalesced coalescing sparse_all_reduce all_reduce_sparse end_coalescing init
    forward _pre_forward _post_forward _pre_backward _post_backward _pre_unshard _unshard _reshard
    _pre_backward_hook _post_backward_hook _pre_backward_prefetch _post_backward_final_callback
    _post_backward_reshard _to_kwargs _rebuild_full_params rebuild_full_params _root_pre_forward
    """
)
"""Collectives after `nccl:` or `gloo:`, and methods of torch's wrappers."""

PACKAGES = words(
    """
    torch torchvision torchaudio torchdata torchrec torchtitan torchao functorch triton numpy scipy pandas
    transformers accelerate datasets tokenizers safetensors huggingface_hub peft trl deepspeed megatron apex
    flash_attn xformers lightning lightning_fabric pytorch_lightning torchmetrics composer vllm fbgemm_gpu
    bitsandbytes einops timm tqdm wandb tensorboard PIL fsspec pyarrow hydra omegaconf ray sklearn
    transformer_engine sglang flashinfer nvtx pydantic requests urllib3
    """
)
_TORCH_PARTS = """
    _C _C_flatbuffer _VF __config__ __init__ _appdirs _awaits _classes _compile _custom_op _custom_ops _decomp
    _deploy _dispatch _dynamo _environment _export _functorch _guards _higher_order_ops _inductor _jit_internal
    _lazy _library _linalg_utils _lobpcg _logging _lowrank _meta_registrations _namedtensor_internals _native _numpy
    _ops _prims _prims_common _python_dispatcher _refs _six _sources _storage_docs _streambase _strobelight
    _subclasses _tensor _tensor_docs _tensor_str _thread_safe_fork _torch_docs _utils _utils_internal _vendor
    _vmap_internals _weights_only_unpickler accelerator amp ao autocast_mode autograd backends compiler contrib cpu
    cuda distributed distributions export fft func functional futures fx hub jit library linalg masked monitor mps
    mtia multiprocessing nested nn onnx optim overrides package profiler quantization quasirandom random
    return_types serialization signal sparse special storage tensor testing torch_version types utils version xpu"""
SURE_PACKAGES = {
    package: words(parts)
    for package, parts in {
        "torch": _TORCH_PARTS,
        "torchvision": "__init__ _internally_replaced_utils _meta_registrations _utils datasets io models ops"
        " transforms tv_tensors utils",
        "torchaudio": "__init__ _backend _extension backend compliance datasets functional io kaldi_io models pipelines"
        " transforms utils",
        "functorch": "__init__ _src compile dim einops experimental",
        "triton": "__init__ _C _utils backends compiler errors experimental knobs language ops runtime testing tools",
        "numpy": "__init__ _core _globals _typing _utils core ctypeslib dtypes exceptions fft lib linalg ma matrixlib"
        " polynomial random rec strings testing",
        "scipy": "__init__ _lib cluster constants datasets fft fftpack integrate interpolate io linalg misc ndimage odr"
        " optimize signal sparse spatial special stats",
        "pandas": "__init__ _config _libs _testing api arrays compat core errors io plotting tseries util",
        "pyarrow": "__init__ _compute acero compute csv cuda dataset feather flight fs ipc json lib orc pandas_compat"
        " parquet types util vendored",
        "safetensors": "__init__ flax mlx numpy paddle tensorflow torch",
        "huggingface_hub": "__init__ _commit_api _login _snapshot_download commands constants errors file_download"
        " hf_api hf_file_system hub_mixin inference repocard repository serialization utils",
        "tqdm": "__init__ __main__ _main _monitor _tqdm _utils asyncio auto autonotebook cli contrib gui notebook rich"
        " std utils version",
    }.items()
}
"""Those that a frame may name without the site-packages before it: torch.profiler cuts the folders of `sys.path` off,
so that `datasets/x.py` may as well be a folder of the user. These are no names for one's own code; still, what is not
in one of their own parts must be made of public words."""


def is_part(path: str, function: str) -> bool:
    """Say whether a file of one of SURE_PACKAGES is surely the package's, and none that somebody put beside it."""
    package, _, rest = path.partition("/")
    part = re.split("[/.]", rest, maxsplit=1)[0]
    return part in SURE_PACKAGES[package] or (is_known(re.sub(r"\.pyx?$", "", rest)) and is_known(function))


@cache
def stdlib_functions(module: str) -> frozenset[str]:
    """Return the functions that a file of Python itself defines: nobody is known by their names."""
    try:
        text = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return frozenset()
    return frozenset(re.findall(r"\bdef (\w+)", text))


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
    FusedAdam FusedSGD FusedLAMB FusedAdagrad FusedNovoGrad DistributedFusedAdam DistributedFusedLAMB LAMB LARS Lion
    Shampoo DistributedShampoo SOAP Adam8bit AdamW8bit PagedAdamW PagedAdamW8bit CPUAdam DeepSpeedCPUAdam
    ZeroRedundancyOptimizer KeyedOptimizerWrapper CombinedOptimizer KeyedOptimizer EmbeddingFusedOptimizer
    """
)
TORCH_FUNCTIONS = _TORCH_BUILTINS | words(
    """
    _add_metadata_json _disable_profiler _enable_profiler _prepare_profiler _kineto_step kineto_available
    profiler_enabled _allgather_base _reduce_scatter_base allreduce allgather reduce_scatter broadcast alltoall_base
    all_reduce all_gather set_eval_frame set_skip_guard_eval_unsafe check_obj_id check_type_id clear_profiler_hooks
    _cuda_emptyCache _cuda_getCompiledVersion _cuda_getArchFlags _cuda_init _cuda_synchronize _cuda_setStream
    _cuda_setDevice _cuda_getDevice _cuda_maybeExchangeDevice _cuda_exchangeDevice _cuda_getCurrentStream
    _cuda_getCurrentRawStream _cuda_getDeviceCount _cuda_isCurrentStreamCapturing _cuda_memoryStats
    _cuda_resetPeakMemoryStats _cuda_getDefaultStream _get_device_properties get_dynamic_layer_stack_depth
    pop_dynamic_layer_stack_and_undo_to_depth unwrap_if_dead assert_size_stride _empty_strided_cuda
    _launch_kernel launch replay multimem_all_reduce_ is_tensor
    requires_grad_ relu_ rms_norm fused_add_rms_norm rotary_embedding reshape_and_cache_flash
    """
)
"""Functions of torch itself that appear as built-ins."""
PYTHON_METHODS = frozenset(
    name
    for owner in (list, dict, set, tuple, str, bytes, int, float, frozenset, deque, Generator)
    for name in dir(owner)
)
_C_MODULES = "_abc _functools _io _operator _thread _warnings _weakref builtins gc itertools math os sys time"
C_FUNCTIONS = frozenset(name for module in _C_MODULES.split() for name in dir(import_module(module))) | words(
    "openssl_md5 openssl_sha1 openssl_sha256 blake2b hexdigest digest update collect"
)
"""Functions of Python that are written in C, which a profiler shows as built-ins."""
BUILTIN_OWNERS = words(
    """
    Tensor Parameter list dict set tuple str bytes int float frozenset generator deque collections _thread _io
    _hashlib _contextvars _abc mappingproxy FunctionMeta _ParameterMeta
    """
)
CLASSES = words(
    """
    PyCapsule pybind11_type collections.OrderedDict collections.defaultdict torch._C.DisableTorchFunctionSubclass
    torch._C._profiler._RecordFunctionFast torch._C._profiler.RecordFunctionFast torch._C._dynamo.guards.TensorGuards
    _hashlib.HASH _contextvars.ContextVar
    pybind11_builtins.pybind11_detail_function_record_v1_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1
    pybind11_builtins.pybind11_detail_function_record_v1_system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_0
    """
)
"""Classes of built-in methods; of these too only functions that are known stay."""
