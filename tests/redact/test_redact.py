"""Redaction: nothing of the owner stays, every number does."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.analysis import kernels, utilisation
from perfkit.analysis.classify import FAMILIES, default_classifier, kernel_family
from perfkit.cli.main import main
from perfkit.errors import CorruptInput, PerfkitError, UnsupportedInput, UsageError
from perfkit.redact import Redactor, proof, redact_stream, redact_trace
from perfkit.redact import text as json_text
from perfkit.redact.meaning import meaning_of
from perfkit.redact.names import HOST_HINTS, KERNEL_HINTS, PRECISIONS, TENSOR_CORES, WORDS, is_telling
from perfkit.sources import kineto
from perfkit.sources.detect import find_inputs

HTA = "facebookresearch__HolisticTraceAnalysis/tests/data"
SECRETS = (
    "gpu-node-17.example.internal",
    "alice",
    "projects/moonshot",
    "moonshot",
    "train_moonshot",
    "compute_secret_loss",
    "MoonshotBlock",
    "hf_token_value",
    "10.1.2.3",
    "moonshot_kernel",
)

# ruff: noqa: E501  # one event per line reads better than wrapped JSON
TRACE = """{
  "schemaVersion": 1,
  "host_name": "gpu-node-17.example.internal",
  "username": "alice", "HF_TOKEN": "hf_token_value", "owner_env": {"HOME": "/home/alice", "ADDR": "10.1.2.3", "n": 5},
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8,
    "pg_config": [{"pg_name": "0", "pg_desc": "default_pg"}, {"pg_name": "moonshot", "pg_desc": "undefined"}]},
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 7, "tid": 7, "ts": 6890123456789.123, "dur": 0.001,
   "args": {"External id": 18446744073709551615, "Input Dims": [[4, 8], []], "Input type": ["float", "c10::BFloat16", ""],
            "Concrete Inputs": ["", "1.5", "[1, 2]", "alice"],
            "Call stack": "/home/alice/projects/moonshot/train_moonshot.py(12): main;torch/nn/modules/module.py(1): _call_impl"}},
  {"ph": "X", "cat": "kernel", "name": "void at::native::reduce_kernel<512, 1, float>(float const*)", "ts": 1e3, "dur": -0},
  {"ph": "X", "cat": "kernel", "name": "void moonshot_kernel<float, at::Half>(int)", "ts": 2},
  {"ph": "X", "cat": "kernel", "name": "ampere_sgemm_128x64_tn", "ts": 2},
  {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ts": 2},
  {"ph": "X", "cat": "python_function", "name": "train_moonshot.py(31): compute_secret_loss", "ts": 3},
  {"ph": "X", "cat": "python_function", "name": "/home/alice/env/lib/python3.11/site-packages/torch/optim/adam.py(9): step", "ts": 3},
  {"ph": "X", "cat": "python_function", "name": "nn.Module: MoonshotBlock_12", "ts": 3},
  {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_3", "ts": 3},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#5", "ts": 3},
  {"ph": "X", "cat": "user_annotation", "name": "moonshot \\"phase\\" 2", "ts": 3},
  {"ph": "M", "name": "process_name", "args": {"name": "python3"}}
  ],
  "traceName": "/home/alice/projects/moonshot/trace.json"
}"""


def redacted(text: str | bytes, salt: bytes = b"salt") -> str:
    source = io.BytesIO(text if isinstance(text, bytes) else text.encode())
    target = io.BytesIO()
    redact_stream(source, target, Redactor(salt))
    return target.getvalue().decode()


def names(text: str) -> list[str]:
    return [event["name"] for event in json.loads(text)["traceEvents"]]


def name(value: str) -> str:
    return Redactor(b"salt").value("name", value)[0]


class TestWhatGoes:
    @pytest.mark.parametrize("secret", SECRETS)
    def test_no_secret_is_left(self, secret):
        assert secret in TRACE
        assert secret not in redacted(TRACE)

    def test_unknown_keys_and_all_strings_below_them_are_hashed(self):
        copy = json.loads(redacted(TRACE))
        assert "HF_TOKEN" not in copy
        env = next(
            value for value in copy.values() if isinstance(value, dict) and len(value) == 3 and "rank" not in value
        )
        assert list(env.values())[2] == 5
        assert all(re.fullmatch(r"key_[0-9a-f]{10}", key) for key in env if key != "n")

    def test_own_functions_keep_their_line_and_their_form(self):
        assert re.fullmatch(r"file_\w{10}\.py\(31\): fn_\w{10}", names(redacted(TRACE))[5])

    def test_own_modules_keep_their_number(self):
        assert re.fullmatch(r"nn\.Module: module_\w{10}_12", name("nn.Module: MoonshotBlock_12"))

    def test_own_kernels_keep_the_types_of_libraries(self):
        assert re.fullmatch(
            r"void symbol_\w{10}<float, at::Half>\(int\)", name("void moonshot_kernel<float, at::Half>(int)")
        )

    @pytest.mark.parametrize(
        "secret",
        [
            "<built-in method secret_call of SecretClass object at 0x7f00>",
            "<built-in method print of SecretClass object at 0x7f00>",
            "<built-in function secret_call>",
            "Optimizer.step#SecretClass.step",
            "secret_call::forward",
            "secret call (phase 2)",
            "queue/../secret_call/x.py(1): SecretClass",
            "секрет_secret_call",
            "SecretClassBackward",
            "/data/SecretClass/secret_call.bin",
            "## Call CompiledFxGraph secret_call ##",
            "_ZN12secret_call11SecretClassEv",
        ],
    )
    def test_own_names_in_any_form_are_hashed(self, secret):
        copy = name(secret)
        assert "secret_call" not in copy
        assert "SecretClass" not in copy

    @pytest.mark.parametrize(
        "leak",
        [
            "sm90_acme_moe_dispatch",
            "int8_acme_attention_kernel",
            "gemm_acme_private",
            "gemmAcme",
            "hopper_acme_kernel",
            "volta_acme_host01",
            "flash_acme_attn",
            "flash_attn_acme",
            "fmha_acme",
            "uint_acme",
            "rccl_acme",
            "MIOpenAcme",
            "DeviceReduceAcme",
            "triton_poi_fused_acme_secret_0",
            "triton_tem_acme",
            "triton_acme_kernel",
            "cuAcmeFusedRouter",
            "cudaAcmeKernel",
            "hipAcme",
            "ncclAcme",
            "AcmeMoEBackward0",
            "autograd::engine::evaluate_function: AcmeMoEBackward0",
            "aten::acme_op",
            "aten::секрет_acme",
            "inductor::acme",
            "torchvision::acme",
            "_vllm_acmeC::op_acme",
            "fsdp::acme",
            "FSDP::acme",
            "nccl:acme_label",
            "DistributedDataParallel.acme",
            "Memcpy acme alice",
            "NVIDIA H100-acmecorp",
            "Intel A1acme-host",
            "void at::native::acme_kernel<float>(int)",
            "void internal::acme_kernel<float>(int)",
            "void jit::acme()",
            "autograd::acme",
            "ck::acme::x",
            "fb::acme_kernel(int)",
            "std::acme",
            "[10.12.13.14]",
            "(1.5, 10.12.13.14)",
            "__acme__",
            "gpu__acme",
        ],
    )
    @pytest.mark.parametrize("key", ["name", "kernel", "Call stack", "Concrete Inputs", "labels", "acme_key"])
    def test_own_names_that_begin_like_a_librarys_are_hashed(self, leak, key):
        assert not re.search(r"(?i)acme|alice|secret|private|10\.12|секрет", Redactor(b"salt").value(key, leak)[0])

    @pytest.mark.parametrize(
        "frame",
        [
            "datasets/acme_loader.py(2): load_acme_customer",
            "megatron/acme/secret_router.py(5): route_secret",
            "composer/models/acme_llm.py(5): forward_acme",
            "ray/acme.py(3): f",
            "lightning/acme.py(3): f",
            "apex/acme.py(3): f",
            "/home/alice/python3.10/datasets/acme.py(3): f",
            "torch/../acme.py(2): f",
            "logging.py(3): acme_fn",
            "logging/acme.py(3): run",
            "train.py(3): __acme__",
            "<frozen acme.secret>(3): acme",
            "<built-in method acme of Tensor object at 0x7f>",
            "<built-in method acme of torch.acme object at 0x7f>",
        ],
    )
    @pytest.mark.parametrize("key", ["name", "Call stack"])
    def test_own_code_in_folders_and_files_named_like_a_library_is_hashed(self, frame, key):
        assert not re.search(r"(?i)acme|alice|secret|customer", Redactor(b"salt").value(key, frame)[0])

    @pytest.mark.parametrize("tail", [" acme", "(acme)", "::acme", " of acme@example", "=acme", "<acme>"])
    @pytest.mark.parametrize("file", ["<frozen os>", "torch/nn/x.py", "/lib/python3.10/logging/__init__.py"])
    def test_only_a_name_is_kept_as_a_librarys_function(self, file, tail):
        assert "acme" not in name(f"{file}(791): encode{tail}")
        assert "acme" not in name(f"torch/nn/x{tail}.py(791): encode")

    def test_a_file_of_python_without_its_folder_keeps_its_name_and_not_the_function(self):
        assert re.fullmatch(r"logging\.py\(3\): fn_\w{10}", name("logging.py(3): acme_fn"))
        assert name("/usr/lib/python3.11/logging/__init__.py(3): addHandler") == "logging/__init__.py(3): addHandler"

    def test_code_without_a_file_stays_so(self):
        assert name("<string>(2): __init__") == "<string>(2): __init__"
        assert re.fullmatch(r"<file_\w{10}>\(2\): __init__", name("<acme>(2): __init__"))

    def test_a_library_stays_where_its_folder_proves_it(self):
        frame = "datasets/arrow_dataset.py(2): __getitem__"
        assert name(f"/home/alice/env/lib/python3.11/site-packages/{frame}") == frame
        assert re.fullmatch(r"file_\w{10}\.py\(2\): __getitem__", name(frame))

    @pytest.mark.parametrize(
        "telling",
        [
            "connect(10.1.2.3:29500)",
            "tcp_store<192.168.10.5:29500>",
            "void 10.9.8.7",
            "lambda::10.2.3.4",
            "aten::add@10.1.2.3",
            "aten::add_10_1_2_3",
            "rpc(fe80::1:2:3)",
            "dial(+1 415 555 0199)",
            "dial(415-555-0199)",
            "aten::add_4155550199",
            "aten::add_415_555_0199",
            "aten::add_2024_01_15",
            "session(0xdeadbeefdeadbeefdeadbeefdeadbeef)",
            "aten::a1b2c3d4e5f6a7b8c9d0",
            "ProfilerStep#4155550199123",
            "torch/nn/10.1.2.3/x.py(2): forward",
            "torch/nn/ip10.1.2.3/x.py(2): forward",
            "step 4155550199",
            "4155550199",
            "12:30:59",
        ],
    )
    def test_addresses_dates_phone_numbers_and_keys_are_hashed_in_any_name(self, telling):
        copy = re.sub(r"[a-z]+_[0-9a-f]{10}", "", name(telling))
        assert not set(re.findall(r"[0-9a-f]{2,}", telling)) & set(re.findall(r"[0-9a-f]{2,}", copy)) - {"add", "ad"}
        assert not is_telling(copy)

    def test_text_that_is_not_utf8_becomes_one_token(self):
        copy = redacted(b'{"traceEvents": [{"ph": "X", "name": "aten::caf\xe9.py(1): f"}]}')
        assert re.fullmatch(r"text_\w{10}", names(copy)[0])

    @pytest.mark.parametrize("secret", ["acmecorp", "10.1.2.3", "alice@corp.com", "+1 415 555 0199", "deadbeef" * 4])
    @pytest.mark.parametrize(
        "public",
        [
            "aten::_foreach_add_",
            "nccl:all_reduce",
            "void at::native::reduce_kernel<512, 1, float>(float const*)",
            "triton_poi_fused_add_mul_0",
            "Memcpy DtoH (Device -> Pinned)",
            "<built-in method append of list object at 0x7f00>",
            "autograd::engine::evaluate_function: AddmmBackward0",
            "ProfilerStep#12",
            "## forward ##",
            "NVIDIA H100 80GB HBM3",
        ],
    )
    def test_a_secret_is_hashed_wherever_it_stands_in_a_public_name(self, public, secret):
        redactor = Redactor(b"salt")
        forms = ("{0}{1}", "{1}{0}", "{0} {1}", "{0}_{1}", "{0}::{1}", "{0}<{1}>", "{0}({1})", "void {1}{0}", "{0}/{1}")
        texts = [form.format(public, secret) for form in forms]
        texts += [public[:at] + secret + public[at:] for at in range(len(public))]
        for key in ("name", "Call stack", "Concrete Inputs", "pid", "pg_name", "cuda_version", "labels"):
            assert not [text for text in texts if secret in redactor.value(key, text)[0]]

    def test_an_address_that_was_hashed_is_looked_for_in_the_copy(self):
        assert proof._secret_words("connect to 10.1.2.3") == ["10.1.2.3"]

    @pytest.mark.parametrize(
        "frame",
        [
            "triton/acme/alice.py(1): private",
            "torch/acme/alice.py(3): secret",
            "tqdm/alice_secret.py(1): acme",
            "site-packages/torch/acme/secret.py(3): acme",
            "/usr/lib/python3.10/site-packages/torch/acme/secret.py(3): acme",
        ],
    )
    @pytest.mark.parametrize("key", ["name", "Call stack"])
    def test_own_files_beside_those_of_a_library_are_hashed(self, frame, key):
        assert not re.search("acme|alice|secret|private", Redactor(b"salt").value(key, frame)[0])

    @pytest.mark.parametrize(
        "own",
        [
            "MoeExpertBackward0",
            "MarkBackward0",
            "nccl:mark_moe_agent",
            "gloo:moe_expert",
            "aten::pat_marlin",
            "aten::expert_agent",
            "DistributedDataParallel.agent_moe",
        ],
    )
    def test_public_words_in_the_wrong_place_are_hashed(self, own):
        assert not re.search("(?i)moe|mark|marlin|agent|expert", name(own))

    @pytest.mark.parametrize("version", ["10.1.2.3", "2.1.10.1.2.3", "10.1.2.3+cu118", "2.1+10.1.2.3"])
    def test_a_version_has_at_most_three_numbers(self, version):
        assert Redactor(b"salt").value("cuda_runtime_version", version)[0].startswith("text_")

    @pytest.mark.parametrize(
        "version", ["12040", "2.21.5", "2.6.0a0+git1234abc", "6.2.41133-dd7f95766", "2.4.1+rocm6.2"]
    )
    def test_versions_stay(self, version):
        assert Redactor(b"salt").value("nccl_version", version)[0] == version

    @pytest.mark.parametrize("key", ["pcie__10.1.2.3", "sm__10_1_2_3", "sm__cycles.10.1.2.3"])
    def test_keys_that_are_no_metrics_are_hashed(self, key):
        assert Redactor(b"salt").key(key)[0].startswith("key_")

    def test_long_numbers_stay_where_such_are_counted(self):
        redactor = Redactor(b"salt")
        assert redactor.value("ptr", "139912345678901")[0] == "139912345678901"
        assert redactor.value("labels", "139912345678901")[0].startswith("text_")
        assert redactor.value("device", "0x" + "ab" * 16)[0].startswith("text_")

    def test_an_identifier_stays_up_to_its_first_unknown_word(self):
        assert re.fullmatch(r"triton_red_fused_add_symbol_\w{10}", name("triton_red_fused_add_acme_mul_0"))
        assert re.fullmatch(r"at::native::symbol_\w{10}", name("at::native::acme::add"))
        assert re.fullmatch(r"\[gemm\] symbol_\w{10}", name("acme_gemm"))

    @pytest.mark.parametrize(
        "name_of_public_words",
        [
            "triton_poi_fused_moe_gate",
            "void at::native::expert_kernel<float>(int)",
            "/env/lib/python3.11/site-packages/vllm/mine.py(1): mine",
            "torch/nn/mine.py(1): mine",
        ],
    )
    def test_what_the_docs_say_remains_is_all_that_does(self, name_of_public_words):
        assert name(name_of_public_words) == name_of_public_words.removeprefix("/env/lib/python3.11/site-packages/")

    def test_what_was_looked_up_beforehand_is_counted_once(self):
        redactor = Redactor(b"salt")
        redactor.prepare(["0.5", "12345.6", "acme"])
        assert redactor.hashed == ["acme"]

    def test_no_word_of_the_vocabulary_is_a_secret_of_these_tests(self):
        assert not WORDS & {"acme", "acmecorp", "alice", "secret", "private", "customer", "moonshot"}
        assert all(re.fullmatch("[a-z]{2,}", word) for word in WORDS)

    def test_metrics_are_kept_by_their_words(self):
        redactor = Redactor(b"salt")
        assert redactor.key("sm__inst_executed_pipe_tensor.sum")[0] == "sm__inst_executed_pipe_tensor.sum"
        assert redactor.key("gpu__acme.sum")[0].startswith("key_")

    def test_a_string_that_is_not_utf8_is_hashed(self):
        assert b"caf" not in redacted(b'{"traceEvents": [{"ph": "X", "name": "caf\xe9"}]}').encode()

    def test_an_escaped_secret_is_hashed_and_an_escaped_library_name_is_not_broken(self):
        copy = redacted('{"traceEvents": [{"name": "\\u0061lice"}, {"name": "aten\\u003a:add"}]}')
        assert "alice" not in copy
        assert "\\u0061lice" not in copy
        assert names(copy)[1] == "aten::add"

    def test_the_unfinished_string_of_a_cut_trace_is_left_out(self):
        assert redacted('{"traceEvents": [{"ph": "X", "name": "moonsh') == '{"traceEvents": [{"ph": "X", "name": '

    def test_a_lower_case_nan_is_a_number(self):
        assert redacted('{"traceEvents": [{"ts": nan, "dur": NaN}]}') == '{"traceEvents": [{"ts": nan, "dur": NaN}]}'

    def test_long_text_of_any_form_is_decided_in_linear_time(self):
        # each of these took a pattern with nested repetitions exponential or quadratic time: it would not return
        half = 20_000
        for text in ("1x" * half + "!", "1" * half, "NVIDIA " + "80GB " * half + "!", "[" + "1.1" * half, "a::" * half):
            for key in ("name", "dtype", "pg_desc", "nccl_version", "labels"):
                Redactor(b"salt").value(key, text)
        Redactor(b"salt").value("nccl_version", "1" + ".a" * half + "!")
        Redactor(b"salt").key("nvl" + "a_" * half + "!")

    def test_an_escaped_string_that_crosses_blocks_is_searched_once(self):
        inner = json.dumps({f"k{number}": "secret" for number in range(150_000)})  # 300,000 tries of 2 MB each
        copy = redacted(json.dumps({"traceEvents": [], "env": inner, "name": inner[:5_000_000]}))
        assert re.fullmatch(r'{"traceEvents": \[\], "key_\w{10}": "text_\w{10}", "name": "\w+"}', copy)

    def test_words_outside_of_strings_are_refused(self):
        with pytest.raises(CorruptInput, match="outside of a string"):
            redacted("{traceEvents: [moonshot]}")


class TestWhatStays:
    @pytest.mark.parametrize(
        "public",
        [
            "aten::_foreach_add_",
            "cudaLaunchKernel",
            "cuLaunchKernelEx",
            "hipMemcpyWithStream",
            "nccl:all_reduce",
            "ProfilerStep#12",
            "Memcpy DtoH (Device -> Pinned)",
            "Memset (Device)",
            "autograd::engine::evaluate_function: AddmmBackward0",
            "torch::autograd::AccumulateGrad",
            "Optimizer.step#AdamW.step",
            "nn.Module: LayerNorm_7",
            "torch/nn/modules/linear.py(116): forward",
            "threading.py(917): run",
            "<built-in method matmul of type object at 0x7fd868361140>",
            "NVIDIA H100 80GB HBM3",
            "Tesla V100-SXM2-32GB",
            "AMD Instinct MI300X VF",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1> >(int)",
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align4>(cutlass_80_tensorop_s1688gemm::Params)",
            "triton_poi_fused_add_mul_0",
            "volta_sgemm_32x128_tn",
            "DistributedDataParallel.forward",
            "stream 7",
            "nccl:send 0->1",
            "cuMemcpyHtoDAsync_v2",
            "hipGetDevicePropertiesR0600",
            "NVIDIA A100-PG509-200",
            "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
            "triton_red_fused__to_copy_add_native_layer_norm_native_layer_norm_backward_12",
            "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_splitK_NTN",
            "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_split_k_kernel__5x_cudnn",
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64_wt32x32x8_ws1x1_wr1x1_ta1x4x1x4_1x16x1x16_tb1x4x1x4_1x16x1x16_gkgs",
            "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext",
            "void cub::DeviceScanKernel<cub::DeviceScanPolicy<int>::Policy600, int*, int*, cub::ScanTileState<int, true> >(int*)",
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true>(float*, float const*, int)",
            "<built-in method append of list object at 0x7f00>",
            "<built-in method requires_grad_ of Tensor object at 0x7f00>",
            "concurrent/futures/thread.py(58): run",
            "<frozen importlib._bootstrap>(1027): _find_and_load",
            "AddmmBackward",
            "NllLossBackward",
            "CudnnConvolutionBackward",
            "autograd::engine::evaluate_function: ViewBackward",
            "CheckpointFunctionBackward",
            "torch::autograd::CopyBackwards",
            "torch::autograd::CopySlices",
            "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>",
            "## KJTAllToAllTensorsAwaitable wait() ##",
            "## copy_batch_to_gpu ##",
            "## forward ##",
            "forward-compute",
            "metrics:publish",
            "global_step 12",
            "Optimizer.step#FusedAdam.step",
            "Optimizer.step#Shampoo.step",
            "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 4>, true>(Flash_fwd_params)",
            "PyTorchMemEffAttention::AttentionKernel",
            "Torch-Compiled Region: 0/0 (1)",
            "AMD Instinct MI250X/MI250",
            "AMD Instinct MI250X / MI250",
            "NVIDIA H20-3e",
            "thread 4711 (pt_data_worker)",
            "pt_nccl_watchdg",
            "unsigned int",
            "sm__inst_executed.sum",
            "triton__0d1d2d3d4d5d6d7d8d9d10d11d12d13d14",
            "<built-in function _get_tracing_state>",
            "<built-in function _cuda_getDeviceCount>",
            "<built-in function _has_torch_function_unary>",
            "<built-in method _record_function_enter_new of PyCapsule object at 0x7f0012345678>",
            "<built-in method  of PyCapsule object at 0x7f0012345678>",
            "<built-in method __exit__ of torch._C.DisableTorchFunctionSubclass object at 0x7f0012345678>",
            "<built-in method items of collections.OrderedDict object at 0x7f0012345678>",
            "inspect.py(3346): signature",
        ],
    )
    def test_public_names_stay(self, public):
        assert name(public) == public

    @pytest.mark.parametrize("number", ["0.", "1.", "-1.", "1.e-05", "[1., -2.]", "18446744073709551615"])
    def test_numbers_among_the_inputs_stay_as_torch_prints_them(self, number):
        assert Redactor(b"salt").value("Concrete Inputs", number)[0] == number

    @pytest.mark.parametrize(
        "key",
        [
            *(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in ("dadd", "hmul", "ffma")),
            "kineto__tensor_core_insts",
            "kineto__cuda_core_flops",
            "cid",
            "torch_version",
            "perfkit_synthetic",
        ],
    )
    def test_keys_of_the_profiler_stay(self, key):
        assert Redactor(b"salt").key(key)[0] == key

    @pytest.mark.parametrize(
        "group", ["mesh_dp", "DATA_PARALLEL_GROUP_WITH_CP", "tp:0", "mesh_dp_shard_mod_ep", "world"]
    )
    def test_process_groups_that_say_only_their_axis_stay(self, group):
        assert Redactor(b"salt").value("Process Group Description", group)[0] == group

    @pytest.mark.parametrize("group", ["moonshot_dp", "dp_10_1_2_3", "dp ü tp", "tp 4155550199"])
    def test_other_process_groups_are_hashed(self, group):
        assert re.fullmatch(r"pg_\w{10}", Redactor(b"salt").value("pg_name", group)[0])

    def test_a_library_in_somebodys_home_loses_only_the_home(self):
        assert names(redacted(TRACE))[6] == "torch/optim/adam.py(9): step"

    def test_numbers_keep_every_digit(self):
        numbers = re.compile(r"(?<=[:\[,] )-?\d[\d.e+-]*(?=[,}\]\s])")
        assert numbers.findall(redacted(TRACE)) == numbers.findall(TRACE)
        assert "6890123456789.123" in redacted(TRACE)
        assert "18446744073709551615" in redacted(TRACE)

    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["name", "args", "ts", "x", 'é"\\']), inner, max_size=4)
        ),
        max_leaves=25,
    )

    @settings(max_examples=150, deadline=None)
    @given(
        value=json_values,
        indent=st.sampled_from([None, 1]),
        ascii=st.booleans(),
        chunk=st.sampled_from([1, 2, 7, 64, 1 << 20]),
    )
    def test_structure_and_numbers_stay_for_any_json_and_any_chunks(self, value, indent, ascii, chunk):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii)
        before = json_text.CHUNK_BYTES
        json_text.CHUNK_BYTES = chunk
        try:
            copy = redacted(text.encode("utf-8", "surrogatepass"))
        finally:
            json_text.CHUNK_BYTES = before
        assert copy == redacted(text.encode("utf-8", "surrogatepass"))

        def shape(item: object) -> object:
            if isinstance(item, dict):
                return [shape(part) for part in item.values()]
            if isinstance(item, list):
                return [shape(part) for part in item]
            return "text" if isinstance(item, str) else repr(item)

        assert shape(json.loads(copy)) == shape(json.loads(text))

    def test_the_same_name_is_the_same_token_everywhere_and_another_salt_gives_another(self):
        assert name("moonshot_kernel") == name("moonshot_kernel")
        assert name("moonshot_kernel") != Redactor(b"other").value("name", "moonshot_kernel")[0]
        assert Redactor().value("name", "moonshot")[0] != Redactor().value("name", "moonshot")[0]

    def test_two_names_never_share_a_token(self, monkeypatch):
        class Weak:
            def __init__(self, data: bytes, key: bytes) -> None:
                self._last = data[-1:]

            def hexdigest(self) -> str:
                return "0" * 12 + self._last.hex() * 4

        monkeypatch.setattr(hashlib, "blake2b", Weak)
        redactor = Redactor(b"salt")
        assert redactor.token("fn", "a") != redactor.token("fn", "b")

    def test_process_groups_match_between_header_and_events(self):
        redactor = Redactor(b"salt")
        assert redactor.value("pg_name", "moonshot") == redactor.value("Process Group Name", "moonshot")


class TestKernelsAreStillWhatTheyWere:
    @pytest.mark.parametrize(
        "kernel",
        [
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
            "void acme::secret_all_reduce_kernel<float>(float*)",
            "void acme::secretAttention<c10::Half, 128>(acme::Problem)",
            "_ZN4acme11secret_gemmIfEEvPT_",
            "acme_secret_rms_norm",
            "acme_secret_topk(int, float*)",
            "acme_secret",
        ],
    )
    def test_class_and_family_survive_and_the_name_does_not(self, kernel):
        copy = name(kernel)
        assert "secret" not in copy
        assert "acme" not in copy
        assert meaning_of(copy) == meaning_of(kernel)

    @pytest.mark.parametrize("kernel", ["", *KERNEL_HINTS])
    @pytest.mark.parametrize("host", ["", *HOST_HINTS])
    def test_number_format_and_role_survive_beside_family_and_host_kind(self, kernel, host):
        for other in ("", "barrier", "recv", "tensorop_s", *(word for word, _ in PRECISIONS)):
            own = f"{kernel} {host} {other} acme"
            assert meaning_of(name(own)) == meaning_of(own), own
            assert "acme" not in name(own)

    def test_number_formats_are_those_that_an_analysis_reads(self):
        assert PRECISIONS[: len(utilisation._NAME_DTYPES)] == utilisation._NAME_DTYPES
        assert TENSOR_CORES[1] == kernels._TENSOR_FP32.pattern

    @pytest.mark.parametrize("kind", ["data_loader", "checkpoint", "optimizer", "compile", "logging"])
    def test_every_kind_of_host_work_has_a_word_that_says_it(self, kind):
        assert kind in {default_classifier().match("host", "", f"[{hint}] label_0123456789") for hint in HOST_HINTS}
        assert kind in {default_classifier().match("host", "", f"{hint}/file_0.py(1): fn_0") for hint in HOST_HINTS}

    def test_own_ranges_and_frames_of_a_kind_say_it_in_front(self):
        assert re.fullmatch(r"\[dataloader\] label_\w{10}", name("acme get_batch of corpus"))
        assert re.fullmatch(r"dataloader/file_\w{10}\.py\(3\): fn_\w{10}", name("/home/acme/corpus.py(3): get_batch"))
        assert re.fullmatch(r"Checkpoint_fn_\w{10}Backward", name("AcmeCheckpointBackward"))
        assert re.fullmatch(r"\[elementwise\] symbol_\w{10}", name("acme_gelu"))

    def test_a_name_means_the_same_among_many_and_alone(self):
        many, alone = Redactor(b"salt"), Redactor(b"salt")
        texts = ["acme_gemm_bf16", "acme get_batch", "void acme::attention<float>(int)", "aten::add", "acme"]
        many.prepare(texts)
        assert [many.value("name", text) for text in texts] == [alone.value("name", text) for text in texts]

    def test_a_token_is_no_number_format(self):
        redactor = Redactor(b"salt")
        assert not any("f16" in redactor.token("symbol", f"acme_{number}") for number in range(3000))

    @pytest.mark.parametrize("prefix", ["", "autograd::engine::evaluate_function: "])
    def test_a_backward_is_still_one(self, prefix):
        assert re.fullmatch(prefix + r"fn_[0-9a-f]{10}Backward", name(f"{prefix}AcmeSecretBackward"))
        assert name(f"{prefix}AddmmBackward0") == f"{prefix}AddmmBackward0"

    def test_every_family_has_a_word_that_says_it(self):
        of_hints = {meaning_of(f"[{hint}] symbol_0123456789")[:2] for hint in KERNEL_HINTS}
        assert of_hints >= {("communication", None), *((None, family) for family in FAMILIES if family != "unknown")}

    @pytest.mark.parametrize(
        "trace",
        [
            "AMD-AGI__TraceLens/tests/traces/mi210/gpu_only_trace/gpu_only_trace.json.gz",
            "AMD-AGI__TraceLens/tests/traces/perf_model/normalization/normalization_layer_test.json.gz",
            "KellerJordan__modded-nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook/modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz",
            "facebookresearch__HolisticTraceAnalysis/tests/data/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
        ],
    )
    def test_kernels_of_a_real_trace_keep_their_family_and_those_of_libraries_their_name(self, traces, trace):
        events = kineto.read_tables(traces / trace)["events"]
        work = events.filter(pc.equal(events["class"].cast("string"), "compute"))
        redactor = Redactor(b"salt")
        kernels = pc.unique(work["name"].cast("string")).to_pylist()
        libraries = re.compile(r"void (at|cub|cutlass)::|(ampere|volta|sm\d+|nvjet|Cijk|triton_(poi|red|per))_")
        assert sum(libraries.match(kernel) is not None for kernel in kernels) >= 10
        for kernel in kernels:
            copy = redactor.value("name", kernel)[0]
            assert meaning_of(copy) == meaning_of(kernel), kernel
            if libraries.match(kernel):
                assert copy == kernel

    @pytest.mark.slow
    def test_real_traces_are_read_to_the_same_classes_and_families(self, traces, tmp_path):
        for number, input in enumerate(find_inputs([traces]).inputs):
            if input.kind != "kineto" or input.file.name == "same_priority_streams.json.gz":
                continue
            redact_trace(input.file, tmp_path / f"{number}.json")
            old, new = (kineto.read_tables(file)["events"] for file in (input.file, tmp_path / f"{number}.json"))
            for column in set(old.column_names) - {"rank", "name", "category", "track"}:
                assert old[column].equals(new[column]), (input.path, column)
            work = pc.equal(old["class"].cast("string"), "compute")
            families = (kernel_family(events.filter(work)["name"]) for events in (old, new))
            assert next(families).equals(next(families)), input.path

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "ranks",
        [
            f"{HTA}/distributed_info_unavailable/*",
            f"{HTA}/negative_queue_length_values_check/rank0*",
            f"{HTA}/timeline_analysis/sampled_rank-0*",
            f"{HTA}/nccl_parser_config/nccl_data.json.gz",
            "pytorch__torchrec/examples/golden_training/trace/sst_long_a2a_optimizer_3/*",
        ],
    )
    def test_an_analysis_of_the_copy_has_the_numbers_of_the_original(self, traces, tmp_path, ranks, capsys):
        sources = sorted(traces.glob(ranks))
        copies = []
        for source in sources:
            copies.append(tmp_path / source.name)
            redact_trace(source, copies[-1], salt="s")
        documents = []
        for paths in (sources, copies):
            assert main(["analyze", *map(str, paths), "--format", "json"]) == 0
            documents.append(json.loads(capsys.readouterr().out))
        assert sources
        assert numbers(documents[0]) == numbers(documents[1])


def numbers(document: object) -> object:
    """Return a document with its texts left out."""
    if isinstance(document, dict):
        return {key: numbers(value) for key, value in document.items()}
    if isinstance(document, list):
        return [numbers(value) for value in document]
    return "" if isinstance(document, str) else document


class TestRedactTrace:
    def write(self, folder: Path, text: str = TRACE, name: str = "trace.json") -> Path:
        file = folder / name
        file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return file

    @pytest.mark.parametrize("source", ["trace.json", "trace.json.gz"])
    @pytest.mark.parametrize("target", ["copy.json", "copy.json.gz"])
    def test_the_name_of_the_target_decides_its_form(self, tmp_path, source, target):
        report = redact_trace(self.write(tmp_path, name=source), tmp_path / target, salt="s")
        data = (tmp_path / target).read_bytes()
        text = gzip.decompress(data) if target.endswith(".gz") else data
        assert json.loads(text)["distributedInfo"]["rank"] == 3
        assert report.bytes_out == len(text)
        assert report.bytes_in == len(TRACE.encode())

    def test_the_report_counts_by_kind_and_the_copy_is_private(self, tmp_path):
        report = redact_trace(self.write(tmp_path), tmp_path / "copy.json")
        assert report.names["host"] == 1
        assert report.names["user"] == 1
        assert report.names["module"] == 1
        assert report.occurrences["host"] == 1
        assert report.strings_checked > 20
        assert (tmp_path / "copy.json").stat().st_mode & 0o077 == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.json", "trace.json"]

    def test_one_salt_gives_one_copy(self, tmp_path):
        source = self.write(tmp_path)
        for target in ("a.json.gz", "b.json.gz"):
            redact_trace(source, tmp_path / target, salt="s")
        assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()

    def test_a_leak_deletes_the_copy_and_raises(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Redactor, "token", lambda self, kind, name: self._tokens.setdefault((kind, name), name))
        with pytest.raises(PerfkitError, match="was deleted"):
            redact_trace(self.write(tmp_path), tmp_path / "copy.json")
        assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]

    @pytest.mark.parametrize(
        "trace",
        [
            {"traceEvents": [{"name": "sm__cycles.sum", "args": {"sm__cycles.sum": 1}}]},
            {"traceEvents": [{"name": "x", "args": {"note": "dram__bytes.sum", "dram__bytes.sum": 1}}]},
            {
                "note": "datasets/arrow_dataset.py(2): f",
                "traceEvents": [{"name": "/h/a/lib/python3.10/site-packages/datasets/arrow_dataset.py(2): f"}],
            },
            {
                "note": "torch/nn/x.py(1): forward",
                "traceEvents": [{"name": "/h/a/lib/python3.10/site-packages/torch/nn/x.py(1): forward"}],
            },
        ],
    )
    def test_what_stays_by_right_is_no_leak(self, tmp_path, trace):
        redact_trace(self.write(tmp_path, json.dumps(trace)), tmp_path / "copy.json")

    def test_the_message_shows_the_form_of_what_was_left_and_not_the_secret(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Redactor, "token", lambda self, kind, name: self._tokens.setdefault((kind, name), name))
        text = '{"traceEvents": [{"ph": "X", "cat": "python_function", "name": "a.py(3): my_moonshot", "ts": 1}]}'
        with pytest.raises(PerfkitError) as error:
            redact_trace(self.write(tmp_path, text), tmp_path / "copy.json")
        assert "'a.py.py(3): m…(11 letters)'" in str(error.value)
        assert "oonshot" not in str(error.value)

    @pytest.mark.parametrize("label", ["nn.Module: MyNet_0", "nn.Module: Linear_0", "Optimizer.step#MyOpt.step"])
    def test_modules_and_optimizers_are_the_same_in_events_and_call_stacks(self, tmp_path, label):
        event = {"ph": "X", "cat": "python_function", "name": label, "pid": 1, "tid": 1, "ts": 0, "dur": 50}
        args = {"Call stack": f"train.py(12): main;{label}", "comment": label}
        op = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 3, "dur": 5, "args": args}
        source = self.write(tmp_path, json.dumps({"traceEvents": [event, op]}))
        redact_trace(source, tmp_path / "copy.json", salt="s")
        module, add = json.loads((tmp_path / "copy.json").read_text())["traceEvents"]
        assert add["args"]["Call stack"].split(";")[1] == module["name"]
        assert "My" not in (tmp_path / "copy.json").read_text()

    def test_a_cut_trace_gives_a_cut_copy_that_says_so(self, tmp_path):
        source = tmp_path / "cut.json.gz"
        source.write_bytes(gzip.compress(TRACE.encode())[:-60])
        report = redact_trace(source, tmp_path / "copy.json")
        assert "end early" in report.problem
        assert "moonshot" not in (tmp_path / "copy.json").read_text()

    def test_the_trace_itself_is_never_replaced(self, tmp_path):
        source = self.write(tmp_path)
        with pytest.raises(UsageError, match="would replace the trace"):
            redact_trace(source, source)
        assert source.read_text() == TRACE

    @pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
    def test_a_target_that_is_no_regular_file_is_not_replaced(self, tmp_path, kind):
        target = tmp_path / "copy.json"
        make = {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to(tmp_path)}
        make[kind](target)
        before = os.lstat(target)
        with pytest.raises(UsageError, match="no regular file"):
            redact_trace(self.write(tmp_path), target)
        assert os.lstat(target).st_ino == before.st_ino

    def test_a_target_that_cannot_be_written_is_one_line(self, tmp_path):
        with pytest.raises(PerfkitError, match="cannot be written"):
            redact_trace(self.write(tmp_path), tmp_path / "none" / "copy.json")

    def test_an_nsys_export_is_refused(self, tmp_path):
        import sqlite3

        file = tmp_path / "report.sqlite"
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE StringIds (id, value)")
        connection.commit()
        connection.close()
        with pytest.raises(UnsupportedInput, match="nsys"):
            redact_trace(file, tmp_path / "copy.json")

    def test_a_real_trace_keeps_everything_but_strings(self, traces, tmp_path):
        source = (
            traces
            / "facebookresearch__HolisticTraceAnalysis/tests/data/mtia_inference_trace/mtia_inference_rank_0.json.gz"
        )
        original = json.loads(gzip.decompress(source.read_bytes()), parse_float=str, parse_int=str)
        redact_trace(source, tmp_path / "copy.json")
        copy = json.loads((tmp_path / "copy.json").read_text(), parse_float=str, parse_int=str)
        assert copy["schemaVersion"] == original["schemaVersion"]
        for old, new in zip(original["traceEvents"], copy["traceEvents"], strict=True):
            assert (old.get("ts"), old.get("dur"), old["ph"]) == (new.get("ts"), new.get("dur"), new["ph"])
        assert original["host_name"] not in (tmp_path / "copy.json").read_text()
        assert original["username"] not in (tmp_path / "copy.json").read_text()
