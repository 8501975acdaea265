package main

// This file runs the built command.

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
)

// ggufmap is the path of the built command.
var ggufmap string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		path, remove, err := testenv.BuildCommand("ggufmap")
		if err != nil {
			fmt.Fprintln(os.Stderr, "build ggufmap:", err)
			return 1
		}
		defer remove()
		ggufmap = path
		return m.Run()
	}())
}

// tinyModel is a GGUF file with one tensor of 8 floats at byte 128.
func tinyModel() []byte {
	str := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	le := binary.LittleEndian
	b := []byte("GGUF\x03\x00\x00\x00")
	b = le.AppendUint64(b, 1) // tensors
	b = le.AppendUint64(b, 2) // metadata entries
	b = str(b, "some.key")
	b = append(b, 2, 0, 0, 0, 1, 0) // u16 1
	b = str(b, "some.other")
	b = append(b, 2, 0, 0, 0, 2, 0) // u16 2
	b = str(b, "blk.4.+x")
	b = le.AppendUint32(b, 1) // dimensions
	b = le.AppendUint64(b, 8)
	b = le.AppendUint32(b, 0) // F32
	b = le.AppendUint64(b, 0) // offset
	return append(b, make([]byte, 128-len(b)+32)...)
}

const tinyTable = "tensor_name,offset_bytes,size_bytes,type,layer,component\nblk.4.+x,128,32,F32,4,'+x\n"

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// call runs the command and returns its exit code and what it printed.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(ggufmap, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestTable(t *testing.T) {
	dir := t.TempDir()
	model := write(t, filepath.Join(dir, "m.gguf"), tinyModel())
	code, stdout, stderr := call(t, model)
	if code != 0 || stdout != tinyTable || stderr != "" {
		t.Errorf("exit %d, printed\n%s%s; want 0,\n%s", code, stdout, stderr, tinyTable)
	}
}

// part is a part of a split model.
func part(no, count int) *gguftest.Model {
	name := fmt.Sprintf("blk.%d.ffn_up.weight", no)
	return &gguftest.Model{
		KVs: []gguftest.KV{
			{Key: "split.no", Value: uint16(no)},
			{Key: "split.count", Value: uint16(count)},
			{Key: "general.architecture", Value: "llama"},
		},
		Tensors: []gguftest.Tensor{{Name: name, Type: gguf.F32, Shape: []int64{8}}},
	}
}

func TestSplitModel(t *testing.T) {
	dir := t.TempDir()
	var paths []string
	for i := range 3 {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("m-%05d-of-00003.gguf", i+1)))
		part(i, 3).Write(t, paths[i])
	}
	table := func(parts ...int) string {
		s := "tensor_name,offset_bytes,size_bytes,type,layer,component"
		if len(parts) > 1 {
			s += ",file"
		}
		for _, i := range parts {
			s += fmt.Sprintf("\nblk.%d.ffn_up.weight,192,32,F32,%d,ffn_up.weight", i, i)
			if len(parts) > 1 {
				s += "," + filepath.Base(paths[i])
			}
		}
		return s + "\n"
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{paths[0]}, table(0, 1, 2)},
		{[]string{paths[2]}, table(0, 1, 2)},
		{paths, table(0, 1, 2)}, // as a shell expands *
		{[]string{"--part", paths[1]}, table(1)},
		{[]string{"--part", paths[2], paths[0]}, table(2, 0)},
	} {
		if code, stdout, stderr := call(t, tt.args...); code != 0 || stdout != tt.want || stderr != "" {
			t.Errorf("%q: exit %d, printed\n%swant\n%s%s", tt.args, code, stdout, tt.want, stderr)
		}
	}
}

// Each table has the requested format, and a column that tells which table it is. The details of
// formats are tested in package trace, those of tables in package inspect.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "m.gguf")
	gguftest.MoE(2, 4).Write(t, model)
	broken := write(t, filepath.Join(dir, "broken.gguf"), []byte("GGUF"))
	tables := []struct {
		args []string
		want string
	}{
		{[]string{model}, "offset_bytes"},
		{[]string{"--wide", model}, "resident_bytes"},
		{[]string{"--experts", model}, "projection"},
		{[]string{"--metadata", model}, "length"},
		{[]string{"--summary", model}, "share"},
		{[]string{"--check", broken}, "finding"},
	}
	formats := map[string]func(out, want string) bool{
		"csv": func(out, want string) bool {
			rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
			return err == nil && slices.Contains(rows[0], want) && len(rows) > 1
		},
		"json": func(out, want string) bool {
			var rows []map[string]any
			err := json.Unmarshal([]byte(out), &rows)
			return err == nil && len(rows) > 0 && rows[0][want] != nil
		},
		"arrow": func(out, want string) bool {
			return strings.HasPrefix(out, "ARROW1") && strings.HasSuffix(out, "ARROW1") && strings.Contains(out, want)
		},
		"parquet": func(out, want string) bool {
			return strings.HasPrefix(out, "PAR1") && strings.HasSuffix(out, "PAR1") && strings.Contains(out, want)
		},
	}
	for _, table := range tables {
		for format, matches := range formats {
			args := append([]string{"--format", format}, table.args...)
			wantCode := 0
			if table.args[0] == "--check" {
				wantCode = 1
			}
			code, stdout, stderr := call(t, args...)
			if code != wantCode || !matches(stdout, table.want) {
				t.Errorf("%q: exit %d, printed\n%.500s%s; want %d, a column %s",
					args, code, stdout, stderr, wantCode, table.want)
			}
			file := filepath.Join(dir, "out")
			code, printed, _ := call(t, append([]string{"-o", file}, args...)...)
			if code != wantCode || printed != "" {
				t.Errorf("%q -o: exit %d, printed %.500q; want %d, nothing", args, code, printed, wantCode)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != stdout {
				t.Errorf("%q: the file differs from the printed table: %v", args, err)
			}
		}
	}
}

func TestSummary(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.gguf"), filepath.Join(dir, "b.gguf")
	gguftest.MoE(2, 4).Write(t, a)
	gguftest.MoE(1, 2).Write(t, b)
	code, stdout, stderr := call(t, "--summary", a, b)
	for _, want := range []string{"a.gguf: ", "\nb.gguf: ", "experts of a token", "blk.1.ffn_gate_up_exps.weight"} {
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Fatalf("exit %d, no %q in\n%s%s", code, want, stdout, stderr)
		}
	}
}

func TestElements(t *testing.T) {
	model := filepath.Join(t.TempDir(), "m.gguf")
	gguftest.MoE(1, 2).Write(t, model)
	for n, want := range map[string]string{"0": "[]", "1": `["<s>"]`, "-1": `["<s>","</s>","a","b"]`} {
		code, stdout, stderr := call(t, "--metadata", "--elements", n, "--format", "json", model)
		if code != 0 || !strings.Contains(stdout, `"value":`+want+"}") {
			t.Errorf("exit %d, --elements %s printed\n%s%s; want 0, %s", code, n, stdout, stderr, want)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	sound := filepath.Join(dir, "sound.gguf")
	gguftest.MoE(2, 4).Write(t, sound)
	odd := filepath.Join(dir, "odd.gguf")
	m := gguftest.MoE(2, 4)
	m.KVs = m.KVs[1:] // no architecture
	m.Write(t, odd)
	text := write(t, filepath.Join(dir, "text.gguf"), []byte("no model"))
	part(0, 2).Write(t, filepath.Join(dir, "s-00001-of-00002.gguf"))
	if code, stdout, stderr := call(t, "--check", sound); code != 0 || stdout != "" || stderr != "" {
		t.Errorf("a sound file: exit %d, %q, %q; want 0, nothing", code, stdout, stderr)
	}
	// All files are checked, even if others have problems.
	code, stdout, stderr := call(t, "--check", text, filepath.Join(dir, "s-00001-of-00002.gguf"), sound, odd)
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != 1 || len(lines) != 3 || stderr != "ggufmap: 3 findings in 3 files\n" {
		t.Fatalf("exit %d\n%s%s; want 1, 3 findings", code, stdout, stderr)
	}
	for i, want := range []string{
		text + ": not a GGUF file", "s-00001-of-00002.gguf: missing parts", odd + ": no general.architecture",
	} {
		if !strings.Contains(lines[i], want) || strings.Count(lines[i], dir) > 2 {
			t.Errorf("finding %q, want %q", lines[i], want)
		}
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	model := write(t, filepath.Join(dir, "m.gguf"), tinyModel())
	text := write(t, filepath.Join(dir, "text"), []byte("no model at all"))
	cut := write(t, filepath.Join(dir, "cut.gguf"), tinyModel()[:70])
	short := write(t, filepath.Join(dir, "short.gguf"), tinyModel()[:150])
	fork := filepath.Join(dir, "fork.gguf")
	forkModel().Write(t, fork)
	part(0, 2).Write(t, filepath.Join(dir, "s-00001-of-00002.gguf"))
	for i := range 2 {
		part(i, 2).Write(t, filepath.Join(dir, fmt.Sprintf("w-%05d-of-00002.gguf", i+1)))
	}
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no such file", []string{filepath.Join(dir, "none")}, 1, "no such file"},
		{"directory", []string{dir}, 1, "not a regular file"},
		{"not a GGUF", []string{text}, 1, "not a GGUF"},
		{"metadata cut", []string{cut}, 1, "truncated"},
		{"weights cut", []string{short}, 1, "truncated"},
		{"output into no directory", []string{"-o", filepath.Join(dir, "no", "x.csv"), model}, 1, "no such file"},
		{"output onto the model", []string{"-o", filepath.Join(dir, ".", "m.gguf"), model}, 1, "is the model itself"},
		{"second of two", []string{model, cut}, 1, "truncated"},
		{"part missing", []string{filepath.Join(dir, "s-00001-of-00002.gguf")}, 1,
			"s-00002-of-00002.gguf; --part takes this file alone"},
		{"output onto a part",
			[]string{"-o", filepath.Join(dir, "w-00002-of-00002.gguf"), filepath.Join(dir, "w-00001-of-00002.gguf")}, 1,
			"is the model itself"},
		{"a fork's type with --strict", []string{"--strict", fork}, 1, "IQ4_KS is not a type that ggml reads"},
		{"no argument", nil, 2, "a model file is needed"},
		{"two tables", []string{"--wide", "--experts", model}, 2, "exclude each other"},
		{"unknown format", []string{"--format", "xml", model}, 2,
			`--format "xml": want csv, json, arrow or parquet (see ggufmap --help)`},
		{"unknown flag", []string{"--nope", model}, 2, "unknown flag"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := call(t, tt.args...)
			last := stderr[strings.LastIndex(strings.TrimSuffix(stderr, "\n"), "\n")+1:]
			if code != tt.code || stdout != "" || !strings.Contains(last, tt.want) ||
				!strings.HasPrefix(last, "ggufmap: ") {
				t.Errorf("exit %d (want %d), stdout %q, stderr %q (want %q)", code, tt.code, stdout, stderr, tt.want)
			}
		})
	}
	if b, err := os.ReadFile(model); err != nil || !bytes.Equal(b, tinyModel()) {
		t.Error("the model was changed")
	}
}

// forkModel has tensors of a type that only a fork reads, and one of a type that nobody knows.
func forkModel() *gguftest.Model {
	return &gguftest.Model{
		KVs: []gguftest.KV{{Key: "general.architecture", Value: "llama"}},
		Tensors: []gguftest.Tensor{
			{Name: "blk.0.attn_q.weight", Type: 144, Shape: []int64{512, 64}},
			{Name: "blk.0.ffn_down_exps.weight", Type: 999, Shape: []int64{512, 64, 4}},
			{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{64}},
		},
		Sizes: map[string]int64{"blk.0.ffn_down_exps.weight": 4096},
	}
}

// A type that ggml does not know is mapped, and told of.
func TestTypesOfForks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	forkModel().Write(t, path)
	for _, tt := range []struct {
		flag string
		code int
		want []string
	}{
		{"--part", 0, []string{
			",17664,IQ4_KS,0,attn_q.weight", ",4096,type(999),0,ffn_down_exps.weight", ",256,F32,-1,output_norm.weight",
		}},
		{"--experts", 0, []string{",1024,type(999),0,ffn_down_exps.weight,3,down"}},
		{"--summary", 0, []string{
			"llama.cpp refuses the file: it has 1 tensor of type IQ4_KS of ik_llama.cpp",
			"llama.cpp refuses the file: it has 1 tensor of unknown type(999), of which only the extent is known",
		}},
		{"--check", 1, []string{"1 tensor of type IQ4_KS of ik_llama.cpp, which llama.cpp refuses"}},
	} {
		code, stdout, _ := call(t, tt.flag, path)
		for _, want := range tt.want {
			if code != tt.code || !strings.Contains(stdout, want) {
				t.Errorf("%s: exit %d (want %d), %s\ndoes not say %q", tt.flag, code, tt.code, stdout, want)
			}
		}
	}
}

// Of a file that is cut off, the metadata are shown as far as they go.
func TestMetadataOfCutFile(t *testing.T) {
	dir := t.TempDir()
	whole := write(t, filepath.Join(dir, "whole.gguf"), tinyModel())
	_, all, _ := call(t, "--metadata", whole)
	lines := strings.SplitAfter(all, "\n")
	for length, want := range map[int]int{24: 1, 40: 1, 60: 2, 80: 3, 100: 3, 150: 3} {
		path := write(t, filepath.Join(dir, "cut.gguf"), tinyModel()[:length])
		code, stdout, stderr := call(t, "--metadata", path)
		if code != 1 || stdout != strings.Join(lines[:want], "") ||
			!strings.HasPrefix(stderr, "ggufmap: only metadata could be read: read "+path+": truncated: ") {
			t.Errorf("%d bytes: exit %d, stdout %q, stderr %q", length, code, stdout, stderr)
		}
	}
}

func TestOutput(t *testing.T) {
	dir := t.TempDir()
	model := write(t, filepath.Join(dir, "m.gguf"), tinyModel())
	longer := []byte("an old text that is longer than the table: " + strings.Repeat("x", 1000))
	real := write(t, filepath.Join(dir, "real.csv"), longer)
	if err := os.Chmod(real, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.csv")
	if err := os.Symlink("real.csv", link); err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{filepath.Join(dir, "new.csv"), link} {
		if code, stdout, stderr := call(t, "-o", out, model); code != 0 || stdout != "" {
			t.Fatalf("exit %d, %q, %q; want 0, nothing printed", code, stdout, stderr)
		}
		if b, err := os.ReadFile(out); err != nil || string(b) != tinyTable {
			t.Errorf("%s has %q, %v; want %q", out, b, err, tinyTable)
		}
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v; want it kept", info, err)
	}
	if info, err := os.Stat(real); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file became %v, %v; want mode 0600", info, err)
	}

	// Anything but a regular file is written to, not replaced. As root, -o /dev/null must not
	// destroy /dev/null.
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // O_RDWR does not wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if code, _, stderr := call(t, "-o", fifo, model); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if info, err := os.Lstat(fifo); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Fatal("the pipe was replaced by a file")
	}
	got := make([]byte, len(tinyTable))
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != tinyTable {
		t.Errorf("read from the pipe: %q, %v; want %q", got, err, tinyTable)
	}

	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("temporary files %q are left, want none", left)
	}
}

func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	small := write(t, filepath.Join(t.TempDir(), "m.gguf"), tinyModel())
	large := filepath.Join(t.TempDir(), "large.gguf") // its table is longer than all buffers
	gguftest.MoE(1, 1<<17).Write(t, large)
	for _, args := range [][]string{
		{small}, {"--format", "json", small}, {"--format", "parquet", small},
		{"--experts", "--format", "parquet", large}, {"--experts", "--format", "arrow", large},
	} {
		cmd := exec.Command(ggufmap, args...)
		cmd.Stdout = full
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "no space left") ||
			strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: %v: %s; want exit 1 and one line: no space left", args, err, &stderr)
		}
	}
}

func TestHelp(t *testing.T) {
	code, stdout, _ := call(t, "--help")
	for _, want := range []string{"ggufmap model.gguf > structure.csv", "Exit codes:", "--output FILE"} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, the help has no %q", code, want)
		}
	}
}

func TestCompletion(t *testing.T) {
	code, stdout, _ := call(t, "__complete", "--format", "")
	if want := "csv\njson\narrow\nparquet\n"; code != 0 || !strings.HasPrefix(stdout, want) {
		t.Errorf("exit %d, --format completes to %q; want 0, %q", code, stdout, want)
	}
}

func TestVersion(t *testing.T) {
	code, stdout, stderr := call(t, "--version")
	if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "ggufmap version ") ||
		!strings.Contains(stdout, "go1.") {
		t.Errorf("exit %d, %q, %q; want 0, the version and that of Go", code, stdout, stderr)
	}
}

// If the user may read a file but does not own it, resident_bytes is empty. Everything else is there.
func TestWideOfSomebodyElsesFile(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	model := filepath.Join(dir, "m.gguf")
	gguftest.MoE(1, 2).Write(t, model)
	for _, path := range []string{filepath.Dir(ggufmap), filepath.Dir(dir), dir, model} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for format, resident := range map[string]func(row string) string{
		"csv":  func(row string) string { return row[strings.LastIndex(row, ",")+1:] },
		"json": func(row string) string { return row[strings.LastIndex(row, ":")+1:] },
	} {
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(ggufmap, "--wide", "--format", format, model)
		cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, &stderr)
		}
		rows := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")[1:]
		empty := map[string]string{"csv": "", "json": "null}"}[format]
		for _, row := range rows {
			if row != "]" && strings.TrimSuffix(resident(row), ",") != empty {
				t.Errorf("%s: row %s, want resident_bytes %q", format, row, empty)
			}
		}
		got := stderr.String()
		if len(rows) < 10 || strings.Count(got, "\n") != 1 || !strings.Contains(got, "resident_bytes is empty") ||
			!strings.Contains(got, model) ||
			!strings.Contains(got, "only to the file's owner and to who may write it") {
			t.Errorf("%s: %d rows, stderr %q; want one line that says why resident_bytes is empty",
				format, len(rows), got)
		}
	}
	if code, _, stderr := call(t, "--wide", model); code != 0 || stderr != "" {
		t.Errorf("as the owner: exit %d, %s; want 0, no warning", code, stderr)
	}
}

// The name of a file cannot control the terminal, and cannot begin a new line.
func TestNamesOnATerminal(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "\x1b]0;title\a\nggufmap: all is well \u202e.gguf"), tinyModel())
	const shown = `\x1b]0;title\a\nggufmap: all is well \u202e.gguf`
	for _, args := range [][]string{{"--check", path}, {"--summary", path}, {path + ".none"}} {
		term := testenv.NewTerminal(t)
		cmd := exec.Command(ggufmap, args...)
		term.Start(cmd)
		_ = cmd.Wait() // --check has findings
		screen := strings.ReplaceAll(term.End(), "\r\n", "\n")
		if !strings.Contains(screen, shown) || strings.ContainsAny(screen, "\x1b\a\u202e") ||
			strings.Contains(screen, "\nggufmap: all is well") {
			t.Errorf("%q prints %q, want the name as %q", args[:1], screen, shown)
		}
	}
}
