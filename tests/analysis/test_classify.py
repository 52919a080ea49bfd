from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from perfkit.analysis.classify import (
    CLASSES,
    FAMILIES,
    Classifier,
    classify_events,
    cpu_kind,
    decode_text,
    kernel_family,
    read_rules,
)
from perfkit.errors import UsageError
from perfkit.schema import TEXT


def classes(*rows: tuple[str | None, str | None], **more: object) -> list[str | None]:
    category, name = zip(*rows, strict=True)
    return classify_events(pa.array(category, pa.utf8()), pa.array(name, pa.utf8()), **more).to_pylist()


def families(*names: str) -> list[str]:
    return kernel_family(pa.array(names)).to_pylist()


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("kernel", "compute"), ("Kernel", "compute"), ("mtia_ccp_events", "compute"),
        ("gpu_memcpy", "memcpy"), ("Memcpy", "memcpy"), ("gpu_memset", "memset"), ("Memset", "memset"),
        ("cpu_op", "op"), ("Operator", "op"), ("cuda_runtime", "runtime"), ("cuda_driver", "runtime"),
        ("Runtime", "runtime"), ("mtia_runtime", "runtime"), ("python_function", "python"),
        ("user_annotation", "range"), ("gpu_user_annotation", "device_range"), ("cuda_sync", "sync"),
        ("overhead", "overhead"), ("ac2g", "flow"), ("fwdbwd", "flow"), ("Trace", None), (None, None),
        ("kernels_of_truth", None), ("cuda_profiler_range", None),
    ],
)  # fmt: skip
def test_old_and_new_categories_mean_the_same(category: str | None, expected: str | None) -> None:
    assert classes((category, "x")) == [expected]


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)",
        "void rcclGenericKernel<1, false>(ncclDevComm*)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*, vllm::RankSignals)",
        "void sglang::cross_device_reduce_2stage<half, 8>(sglang::RankData*)",
        "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<0, __half, 8>(int)",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<float, 4, false>(tensorrt_llm::kernels::Params)",
        "void deep_ep::intranode::dispatch<8, 768>(int4*, float*, int*)",
        "void deep_ep::internode_ll::combine<false, 3, 7168, 9>(void*)",
        "void nvshmemi_transfer_rma_put_kernel<int>(int*)",
        "void mscclpp::allreduce7<__half>(__half*)",
        "_ZN7mscclpp9allgatherE",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<half>>(half const*)",
        "all_gather_kernel",
    ],
)
def test_kernels_of_communication_libraries_are_communication(name: str) -> None:
    assert classes(("kernel", name)) == ["communication"]


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_all_reduce_wait_tensor_add_0",
        "triton_red_fused__to_copy_all_gather_into_tensor_mul_3",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(float)",
        "void deep_ep::layout::get_layout<256, 8>(long const*)",
        "void cub::DeviceReduceByKeyKernel<int>(int*)",
        "void moe::dev::routing::routingIndicesHistogramKernel<int>(int)",
        "a kernel nobody has heard of",
    ],
)
def test_kernels_that_only_sound_like_collectives_are_compute(name: str) -> None:
    assert classes(("kernel", name)) == ["compute"]


def test_collective_metadata_decides_before_any_name() -> None:
    rows = [
        ("kernel", "mystery"),
        ("kernel", "mystery"),
        ("gpu_memcpy", "Memcpy PtoP"),
        ("cpu_op", "record_param_comms"),
    ]
    got = classes(*rows, has_collective_args=np.array([True, False, True, True]))
    assert got == ["communication", "compute", "communication", "op"]


def test_everything_that_mtia_s_control_processor_does_is_device_work() -> None:
    rows = [("mtia_ccp_events", n) for n in ("pe_exe", "dma_request", "event_wait", "event_record")]
    assert classes(*rows) == ["compute", "memcpy", "compute", "compute"]


def test_names_matter_only_for_the_class_that_a_rule_is_of() -> None:
    rows = [
        ("cpu_op", "nccl:all_reduce"),
        ("user_annotation", "gloo:all_reduce"),
        ("python_function", "Python GC"),
        ("cpu_op", "Python GC"),
        (None, "[memory]"),
        ("cpu_instant_event", "[memory]"),
        ("kernel", None),
    ]
    assert classes(*rows) == ["op", "range", "gc", "op", "memory", "memory", "compute"]


def test_the_phase_tells_counters_and_flows() -> None:
    phases = pa.array(["C", "s", "f", "X", None])
    got = classes(("cpu_op", "a"), ("x", "b"), (None, "c"), ("cpu_op", "d"), ("cpu_op", "e"), phase=phases)
    assert got == ["counter", "flow", "flow", "op", "op"]


def test_all_layouts_of_text_give_the_same_classes() -> None:
    category, name = ["kernel", "kernel", None, "cpu_op"], ["ncclDevKernel_X", "gemm", "[memory]", None]
    expected = ["communication", "compute", "memory", "op"]
    plain = [pa.array(v, pa.utf8()) for v in (category, name)]
    encoded = [v.dictionary_encode().cast(TEXT) for v in plain]
    chunked = [pa.chunked_array([v[:2].dictionary_encode(), v[2:].dictionary_encode()]) for v in plain]
    for columns in (plain, encoded, chunked):
        assert classify_events(*columns).to_pylist() == expected
    assert classify_events(*encoded).cast(TEXT).type == TEXT
    assert classify_events(pa.array([], pa.utf8()), pa.array([], pa.utf8())).to_pylist() == []


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (
            "gemm",
            [
                "ampere_sgemm_128x64_nn",
                "nvjet_tst_192x192_64x3_2x1_v_bz_coopB_NNN",
                "Cijk_Ailk_Bljk_BBS_BH_MT16x64",
                "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(Params)",
                "triton_mm",
                "bmm_Bfloat16_x",
                "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
                "void gemv2T_kernel_val<int, int>(x)",
                "triton_tem_fused_mm_3",
                "_matmul_ogs_NNT_bf16",
            ],
        ),
        (
            "attention",
            [
                "void pytorch_flash::flash_fwd_kernel<Traits>(Params)",
                "attn_fwd",
                "kernel_unified_attention_2d",
                "void cutlass::device_kernel<flash::FlashAttnFwdSm90<X>>(P)",
                "triton_tem_fused_flex_attention_1",
                "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
                "fmhaSm100aKernel_Qkv",
                "void ck_tile::kentry<2, ck_tile::FmhaFwdKernel<X>>(Y)",
            ],
        ),
        (
            "conv",
            [
                "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32",
                "cudnn_infer_volta_scudnn_winograd_128x128",
                "igemm_bwd_gtcx3_nhwc_bf16_bx0",
                "void cudnn::cnn::im2col4d_kernel<float>(x)",
                "_ZN2ck16tensor_operation6device39kernel_grouped_conv_fwd_xdl_cshuffle_v3",
            ],
        ),
        (
            "norm",
            [
                "MIOpenBatchNormBwdSpatial",
                "void cudnn::bn_bw_1C11_kernel_new<float>(x)",
                "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(x)",
                "triton_red_fused_native_layer_norm_2",
            ],
        ),
        (
            "elementwise",
            [
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
                "triton_poi_fused_add_mul_0",
                "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(x)",
                "triton_poi_fused_0",
            ],
        ),
        (
            "copy",
            [
                "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(X)>(int)",
                "triton_poi_fused__to_copy_1",
                "batched_transpose_16x32_half",
            ],
        ),
        (
            "reduction",
            [
                "void at::native::reduce_kernel<512, 1, X>(Y)",
                "triton_per_fused_sum_2",
                "void (anonymous namespace)::softmax_warp_forward<float>(x)",
            ],
        ),
        (
            "embedding",
            [
                "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<float>(x)",
                "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(x)",
            ],
        ),
        (
            "optimizer",
            ["void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(x)", "triton_for_fused_0"],
        ),
        ("other", ["void cub::DeviceScanKernel<int>(x)", "triton__0d1d2d"]),
        ("unknown", ["zorp", ""]),
    ],
)
def test_kernels_have_the_family_that_an_engineer_would_give_them(family: str, names: list[str]) -> None:
    assert dict(zip(names, families(*names), strict=True)) == dict.fromkeys(names, family)


def test_the_words_of_a_fused_kernel_do_not_make_it_the_op_it_was_fused_with() -> None:
    assert families("triton_per_fused__flash_attn_backward__unsafe_view_mul_sigmoid_sum_8") == ["reduction"]
    assert families("triton_poi_fused__scaled_mm__to_copy_clone_div_0") == ["elementwise"]


def test_cpu_ranks_know_communication_and_waits() -> None:
    names = pa.array(["gloo:all_reduce", "c10d::allreduce_", "aten::mm", "aten::await_nothing"])
    assert cpu_kind(names).to_pylist() == ["communication", "wait", "work", "work"]


def test_rules_of_a_user_go_first(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "kind,of,pattern,result,note\nclass,compute,^MyRing,communication,ours\n"
        "family,,^My(GEMM|Mm),gemm,\nfamily,,ampere_sgemm,other,\n"
    )
    mine = Classifier.load(path)
    kernels = pa.array(["kernel"] * 3)
    assert classify_events(kernels, pa.array(["MyRingSum", "myringsum", "x"]), classifier=mine).to_pylist() == [
        "communication", "communication", "compute"]  # fmt: skip
    assert kernel_family(pa.array(["MyGEMM_1", "ampere_sgemm_1", "Cijk_"]), classifier=mine).to_pylist() == [
        "gemm", "other", "gemm"]  # fmt: skip


def test_the_environment_names_the_rules_of_a_user(tmp_path, monkeypatch) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("kind,of,pattern,result,note\nfamily,,zorp,norm,\n")
    monkeypatch.setenv("PERFKIT_CLASSES", str(path))
    assert families("zorp") == ["norm"]
    monkeypatch.delenv("PERFKIT_CLASSES")
    assert families("zorp") == ["unknown"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pattern,result\n", "first line must be"),
        ("kind,of,pattern,result,note\nfamilly,,x,gemm,\n", "line 2: kind 'familly'"),
        ("kind,of,pattern,result,note\nfamily,,x,gem,\n", "line 2: result 'gem'"),
        ("kind,of,pattern,result,note\nfamily,compute,x,gemm,\n", "`of` is a class"),
        ("kind,of,pattern,result,note\nfamily,,(,gemm,\n", "bad pattern"),
    ],
)
def test_a_bad_rules_file_names_the_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_rules(text, "mine.csv")


def test_a_missing_rules_file_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .* name a CSV file of rules with PERFKIT_CLASSES"):
        Classifier.load(tmp_path / "no.csv")


def test_every_result_in_the_file_is_in_the_vocabulary_and_every_family_is_reachable() -> None:
    rules = Classifier.load().rules
    assert {r.result for r in rules if r.kind == "family"} | {"unknown"} == set(FAMILIES)
    assert {r.result for r in rules if r.kind in ("category", "class")} | {"counter"} == set(CLASSES)


def test_codes_become_text_and_minus_one_null() -> None:
    assert decode_text(np.array([1, -1, 0, 1]), ("a", "b")).to_pylist() == ["b", None, "a", "b"]
    assert decode_text(np.array([-1, -1]), ()).to_pylist() == [None, None]
    assert decode_text(np.empty(0, np.int64), ("a",)).to_pylist() == []
