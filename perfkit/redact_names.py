"""Names that `perfkit.redact` lets pass: those of public libraries and of the profiler itself.

Whatever is not here is hashed, so a missing name costs readability and never privacy. Add a name only if it
is public and cannot be a person, a host, a site or a product.
"""

from __future__ import annotations

import re


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
    r"|[\[(](?:[\d\s\[\](),.+\-]|True|False|None)*[\])]|\d+ bytes|grid\([\d, ]*\)|(?:cuda|cpu|hip|xpu|mtia)(?::\d+)?"
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
    mean none dma_request event_record event_wait pe_exe merge remote
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

LIBRARY_NAME = re.compile(
    r"(?:aten|prim|prims|c10d|c10d_functional|_c10d_functional|fbgemm|quantized|mkldnn|onednn|torchvision|inductor|xla"
    r"|flash_attn(?:_\d)?|_?vllm_\w*C\w*|rocm|symm_mem|fsdp|torch_tensorrt|bitsandbytes|transformer_engine)::[\w.]+"
    r"|(?:nccl|gloo|mpi|ucc|xccl):\w+|ProfilerStep#?\d*|(?:cuda|hip|nccl|rccl)[A-Z]\w*|cu[A-Z]\w*|cublas\w*|cudnn\w*"
    r"|(?:autograd::engine::evaluate_function: )?(?:[A-Z]\w*Backward\d+|torch::autograd::\w+|CompiledFunctionBackward)"
    r"|Mem(?:cpy|set)[ \w]*(?: ?\([A-Za-z >-]+\))?|(?:PyTorch Profiler|__cupti_profiler__) \(-?\d+\)"
    r"|Torch-Compiled Region: \d+/\d+|(?:stream|GPU|thread) \d+ ?|python\d?(?:\.\d+)?"
    r"|[Tt]hread \d+(?: \((?:python\d?(?:\.\d+)?|pt_main_thread|pt_autograd_\d+|cuda-EvtHandlr)\))?"
    r"|Stream \d+"
    r"|(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel)\.\w+|FSDP::\w+"
    r"|(?:NVIDIA|Tesla|Quadro|GeForce|AMD|Intel)(?: (?:\(R\)|[A-Z]*\d[\w-]*|HBM\w*|PCIe|NVL|VF|Instinct"
    r"|RTX|GTX|Ti|SUPER|Super|Ada|Generation|Radeon|GeForce|Graphics|Tesla|TITAN|Max|Laptop|GPU))+"
)
"""Names of operators, runtime calls, devices and profiler marks."""

NAMESPACES = re.compile(
    r"at|c10|c10d|torch|std|cub|thrust|cutlass\w*|cute|cudnn\w*|cask\w*|cublas\w*|xmma\w*|nccl\w*|rccl\w*|at_cuda_detail|cuda|ck"
    r"|ck_tile|rocprim|hipcub|rocrand|hiprand|magma|fbgemm\w*|flash|flash_attn\w*|pytorch_flash|tensorrt_llm|transformer_engine"
    r"|apex|__gnu_cxx|caffe2|gloo|jit|cooperative_groups|aten|prim|autograd|internal|epilogue|multi_tensor_apply|flashinfer|vllm|fb|_C"
)
SYMBOL_WORD = re.compile(
    r"(?:void|const|volatile|unsigned|signed|long|int|short|char|bool|float|double|half|float2|float4|__half2?|__nv_bfloat162?"
    r"|__nv_bool|uint\w*|int\d+\w*|size_t|lambda|operator|anonymous|namespace|unnamed|type|instance|true|false|enum|struct|auto"
    r"|Params|Tensor|value|Type)"
    r"|(?:\d+x?)+(?:u|ul|ull|l|f|L|U|UL)?|\d+e\d+|0x[0-9a-fA-F]+"
    r"|(?:ampere|volta|turing|hopper|maxwell|pascal|kepler|sm\d+|cutlass|cudnn|cublas\w*|nccl\w*|rccl\w*|nvjet|Cijk|gemm\w*|gemv\w*"
    r"|gemmk1\w*|splitK\w*|scal_kernel|dot_kernel|reduce_1Block\w*|magma|fft|fft2d|vector_fft|regular_fft|winograd\w*|MIOpen\w*"
    r"|batched_transpose|SubTensorOp\w*|implicit_convolve\w*|explicit_convolve\w*|nchwTo\w*|nhwcTo\w*|flip_filter|fmha|flash_\w*"
    r"|triton_(?:poi|red|per|tem|mm|for|spl|unk)|igemm|hiprand|rocrand|softmax_warp|split_embedding|indexing_backward|triton__|StoreWithCast|LoadWithCast"
    r"|multi_tensor_apply\w*|TensorListMetadata|multimem_\w*|(?:one|two)_shot_(?:all_reduce|reduce_scatter)\w*"
    r"|cross_device_reduce\w*|CatArrayBatchedCopy\w*|elementwise_kernel\w*|DeviceScan\w*|DeviceReduce\w*)"
    r"[A-Za-z0-9_]*"
)
"""Words of a C++ symbol that stay when they are not qualified by a namespace."""

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
STDLIB = words(
    """
    threading contextlib functools multiprocessing concurrent selectors socket json copy copyreg collections
    random typing enum abc weakref logging re os posixpath genericpath runpy subprocess tempfile warnings
    inspect importlib asyncio shutil pathlib pickle struct ast tokenize linecache traceback dataclasses operator
    heapq bisect uuid hashlib gzip zipfile ctypes unittest argparse socketserver http urllib ssl textwrap
    codecs locale reprlib sre_parse sre_compile typing_extensions _collections_abc
    """
)
STDLIB_PACKAGES = words(
    "multiprocessing concurrent json collections importlib asyncio logging http urllib unittest ctypes"
)
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
BUILTIN_OWNERS = words(
    """
    Tensor Parameter list dict set tuple str bytes int float frozenset generator deque collections _thread _io
    _hashlib _contextvars _abc mappingproxy FunctionMeta _ParameterMeta
    """
)
