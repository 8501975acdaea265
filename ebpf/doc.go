// Package ebpf observes an unmodified llama.cpp from outside: uprobes on its ggml and libllama report, in the
// vocabulary of package event, each decode and each op that reads a weight. It knows ggml's structs and symbols and
// the kernel's probes; it does not know what the events are used for.
//
// Three functions carry the probes. ggml_cpu_extra_compute_forward(params, node) is called by the CPU backend first
// for every op that it runs (since December 2024), ggml_compute_forward_*_fused(params, first, second) for fused
// ones; llama_decode bounds the steps.
//
// Needs CAP_BPF, CAP_PERFMON (root in practice) and Linux 5.17 (bpf_find_vma, bpf_loop).
package ebpf

//go:generate go tool bpf2go -target amd64,arm64 -type ops_event -type op_record -type ids_event -type decode_event -type template_event -type shape_event -type graph_event -type buffers_event -type sample_event -type target_config -type layout -type thread -type counts -type source -type buffer -type gather -type kind -type counter -type limit -type op_flag -type source_flag trace bpf/trace.bpf.c -- -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu
