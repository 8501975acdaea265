#!/bin/sh
# Compiles the BPF programs and generates their Go bindings. `go generate ./ebpf` runs it in the
# package's directory. It needs clang, llvm-strip and libbpf's headers.
set -eu

# generate NAME TYPE...: compiles bpf/NAME.bpf.c, with Go types for these C types.
generate() {
	name=$1
	shift
	types=
	for type; do
		types="$types -type $type"
	done
	# shellcheck disable=SC2086 # the types are words
	go tool bpf2go -target amd64,arm64 $types "$name" "bpf/$name.bpf.c" -- \
		-mcpu=v3 -Wall -Wextra -Wno-unused-parameter -Werror -I/usr/include/x86_64-linux-gnu
}

generate trace \
	ops_event op_record ids_event decode_event template_event shape_event graph_event buffers_event \
	sample_event selected_event lookup_event input_event target_config layout thread counts source buffer gather \
	kind counter limit op_flag source_flag tap

generate system \
	pages_event process_event io file_key cause event_kind
