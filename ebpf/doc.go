// Package ebpf observes an unmodified llama.cpp from outside, with BPF programs on uprobes and
// kernel tracepoints. It reports each decode and each op that reads a weight in the vocabulary of
// package event. A [Tracer] loads and attaches the programs and turns what they send into events;
// [Examine] finds out whether tracing would work on this machine and target. Package capture runs
// it; cmd/tracer shows the findings.
//
// The probes sit on ggml_cpu_extra_compute_forward(params, node), which the CPU backend calls first
// for every op (since December 2024), on ggml_compute_forward_*_fused(params, first, second) for
// fused ops, on ggml_graph_compute, and on llama_decode and llama_encode, which bound the steps.
// Two more are on llama_set_warmup and ggml_backend_buffer_free. Package ggml finds these functions
// in the target's files.
//
// It needs CAP_BPF and CAP_PERFMON (in practice root) and Linux 5.17 (bpf_find_vma, bpf_loop).
package ebpf

//go:generate sh bpf/generate.sh
