// Package capturetest provides a target for tests of capturers that reports whatever a scenario
// wants: a program without llama.cpp, whose own ggml hands out made-up tensors, graphs and batches
// (faketarget.c). It also provides a small model for that target.
package capturetest

// This file compiles the target and writes its model.

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/cc"
	"tensorcast/internal/testenv"
)

//go:embed faketarget.c
var source string

// Target is the compiled program in a directory of its own, which every user can reach, with its
// libraries beside it.
type Target struct {
	Dir     string
	Program string
}

// libraries are the target's libraries. Each may need those before it, as ggml's do.
var libraries = []struct{ name, symbol string }{
	{"libggml-base.so", "LIBBASE"}, {"libggml-cpu.so", "LIBCPU"}, {"libllama.so", "LIBLLAMA"},
}

// New compiles the target for the time of the test. It skips the test where there is no C compiler.
func New(t testing.TB) *Target {
	t.Helper()
	testenv.NeedMachine(t)
	dir := testenv.PublicDir(t)
	target, err := compileTarget(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func compileTarget(ctx context.Context, dir string) (*Target, error) {
	links := []string{"-pthread", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"}
	for _, l := range libraries {
		path := filepath.Join(dir, l.name)
		if err := cc.Compile(ctx, path, source, append([]string{
			"-D" + l.symbol, "-shared", "-fPIC", "-w", "-Wl,-soname," + l.name,
		}, links...)...); err != nil {
			return nil, fmt.Errorf("compile %s: %w", l.name, err)
		}
		links = append(links, path)
	}
	program := filepath.Join(dir, "faketarget")
	if err := cc.Compile(ctx, program, source, links...); err != nil {
		return nil, fmt.Errorf("compile faketarget: %w", err)
	}
	return &Target{Dir: dir, Program: program}, nil
}

// Scenarios returns the names of what the target can do. The first one, "control", reports the
// truth about the model.
func (f *Target) Scenarios(t testing.TB) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), f.Program, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// Layers and Experts are those of the target's model.
const (
	Layers  = 4
	Experts = 8
)

// Model is a model file for the target.
type Model struct {
	Path  string
	table string
}

// NewModel writes a model with a few experts, of 2 MB, to a new directory. Scenarios may change the file.
func NewModel(t testing.TB) *Model {
	t.Helper()
	const embd, ff, vocab = 256, 128, 512
	m := gguftest.Model{
		KVs: []gguftest.KV{
			{Key: "general.architecture", Value: "qwen3moe"}, {Key: "qwen3moe.block_count", Value: uint32(Layers)},
			{Key: "qwen3moe.expert_count", Value: uint32(Experts)},
			{Key: "qwen3moe.expert_used_count", Value: uint32(2)},
		},
		Tensors: []gguftest.Tensor{{Name: "token_embd.weight", Type: gguf.Q8_0, Shape: []int64{embd, vocab}}},
	}
	for i := range Layers {
		for _, w := range []gguftest.Tensor{
			{Name: "attn_norm", Type: gguf.F32, Shape: []int64{embd}},
			{Name: "attn_q", Type: gguf.Q8_0, Shape: []int64{embd, embd}},
			{Name: "ffn_gate_inp", Type: gguf.F32, Shape: []int64{embd, Experts}},
			{Name: "ffn_up_exps", Type: gguf.Q4_0, Shape: []int64{embd, ff, Experts}},
			{Name: "ffn_down_exps", Type: gguf.Q4_0, Shape: []int64{ff, embd, Experts}},
		} {
			w.Name = fmt.Sprintf("blk.%d.%s.weight", i, w.Name)
			m.Tensors = append(m.Tensors, w)
		}
	}
	m.Tensors = append(m.Tensors, gguftest.Tensor{Name: "output.weight", Type: gguf.Q8_0, Shape: []int64{embd, vocab}})
	dir := testenv.PublicDir(t)
	to := &Model{Path: filepath.Join(dir, "model.gguf"), table: filepath.Join(dir, "tensors")}
	m.Write(t, to.Path)
	f, err := gguf.Open(to.Path)
	if err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	for i := range f.Tensors {
		w := &f.Tensors[i]
		ne := [4]int64{1, 1, 1, 1}
		copy(ne[:], w.Shape)
		fmt.Fprintln(&list, w.Name, uint32(w.Type), ne[0], ne[1], ne[2], ne[3], w.Offset, w.Size)
	}
	if err := os.WriteFile(to.table, []byte(list.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return to
}

// Args returns the command line of a scenario that lasts as long as long says. The words are those
// of faketarget.c: "early", "remap", "wait".
func (f *Target) Args(m *Model, scenario string, long time.Duration, words ...string) []string {
	return append([]string{f.Program, m.Path, m.table, scenario, strconv.FormatFloat(long.Seconds(), 'f', -1, 64)},
		words...)
}

// Ops returns the names of the target's ops, by number.
func Ops() []string {
	return []string{"NONE", "ADD", "MUL", "RMS_NORM", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS", "UNARY"}
}
