package pattern

// These tests write and read pattern.json, well-formed and not.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"tensorcast/internal/testenv"
)

// small returns a cycle with one read of each kind.
func small() *Cycle {
	return &Cycle{
		Files: []CycleFile{
			{Name: "m-00001-of-00002.gguf", Size: 100000, Fingerprint: someFingerprint},
			{Name: "m-00002-of-00002.gguf", Size: 50000, Fingerprint: "ffeeddccbbaa99887766554433221100"},
		},
		Reads: []CycleRead{
			{File: 0, Tensor: "token_embd.weight", Op: "GET_ROWS", Offset: 4096, Length: 64000, Slice: 64, Slices: 1,
				Nanos: 1200},
			{File: 1, Tensor: "blk.0.attn_norm.weight", Op: "RMS_NORM+MUL", Offset: 4096, Length: 64, Nanos: 3},
			{File: 1, Tensor: "blk.0.ffn_up_exps.weight", Op: "MUL_MAT_ID", Offset: 8192, Length: 8000, Slice: 1000,
				Slices: 2, Experts: true, Nanos: -1},
			{File: 0, Tensor: "token_embd.weight", Op: "MUL_MAT", Offset: 4096, Length: 64000, Nanos: 0},
		},
	}
}

const smallText = `{"pattern_schema": 1,
"files": [
  {"name":"m-00001-of-00002.gguf","size_bytes":100000,"fingerprint":"00112233445566778899aabbccddeeff"},
  {"name":"m-00002-of-00002.gguf","size_bytes":50000,"fingerprint":"ffeeddccbbaa99887766554433221100"}
],
"reads": [
  {"file":0,"tensor_name":"token_embd.weight","op":"GET_ROWS","offset_bytes":4096,"size_bytes":64000,"slice_bytes":64,"slices":1,"compute_ns":1200},
  {"file":1,"tensor_name":"blk.0.attn_norm.weight","op":"RMS_NORM+MUL","offset_bytes":4096,"size_bytes":64,"compute_ns":3},
  {"file":1,"tensor_name":"blk.0.ffn_up_exps.weight","op":"MUL_MAT_ID","offset_bytes":8192,"size_bytes":8000,"slice_bytes":1000,"slices":2,"experts":true,"compute_ns":-1},
  {"file":0,"tensor_name":"token_embd.weight","op":"MUL_MAT","offset_bytes":4096,"size_bytes":64000,"compute_ns":0}
]}
`

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	if err := small().Write(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != smallText {
		t.Errorf("it writes\n%s, want\n%s", b.String(), smallText)
	}
	c, err := ReadCycle(iotest.OneByteReader(&b))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, small()) {
		t.Errorf("it reads %+v, want %+v", c, small())
	}
	broken := errors.New("broken")
	if err := small().Write(brokenWriter{broken}); !errors.Is(err, broken) {
		t.Errorf("error %v; want %v", err, broken)
	}
	if _, err := ReadCycle(io.MultiReader(strings.NewReader(smallText[:200]),
		iotest.ErrReader(broken))); !errors.Is(err, broken) || errors.Is(err, ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// JSON that another program formats differently, and fields that a later version adds, are
// understood.
func TestReadOtherForms(t *testing.T) {
	for name, text := range map[string]string{
		"another order": strings.Replace(smallText, `{"pattern_schema": 1,`, `{`,
			1)[:len(smallText)-len(`"pattern_schema": 1,`)-2] + `, "pattern_schema": 1}`,
		"more to say":    strings.Replace(smallText, `"files"`, `"made_by": {"name": ["analyze", 3]}, "files"`, 1),
		"more of a read": strings.Replace(smallText, `"op":"MUL_MAT"`, `"op":"MUL_MAT","more":[1]`, 1),
		"space behind":   smallText + "\n\n",
	} {
		c, err := ReadCycle(strings.NewReader(text))
		if err != nil || !reflect.DeepEqual(c, small()) {
			t.Errorf("%s: %+v, %v; want %v", name, c, err, small())
		}
	}
}

// A cycle that contradicts itself is neither read nor written.
func TestInvalidCycles(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(c *Cycle)
		says   string
	}{
		"no files":       {func(c *Cycle) { c.Files = nil }, "0 files and 4 reads"},
		"no reads":       {func(c *Cycle) { c.Reads = nil }, "2 files and 0 reads"},
		"too many reads": {func(c *Cycle) { c.Reads = make([]CycleRead, maxReads+1) }, "more than 32768 reads"},
		"too many files": {func(c *Cycle) { c.Files = make([]CycleFile, maxFiles+1) }, "more than 4096 files"},
		"empty file":     {func(c *Cycle) { c.Files[1].Size = 0 }, "file 1 has 0 bytes"},
		"negative file":  {func(c *Cycle) { c.Files[1].Size = -4 }, "file 1 has -4 bytes"},
		"files without end": {func(c *Cycle) { c.Files[0].Size, c.Files[1].Size = math.MaxInt64, 50000 },
			"files together are too large"},
		"no name":               {func(c *Cycle) { c.Files[0].Name = "" }, `file 0 has the name ""`},
		"a path":                {func(c *Cycle) { c.Files[0].Name = "a/b" }, `file 0 has the name "a/b"`},
		"the parent":            {func(c *Cycle) { c.Files[0].Name = ".." }, `file 0 has the name ".."`},
		"a name for a terminal": {func(c *Cycle) { c.Files[0].Name = "\x1b[2J" }, `file 0 has the name "\x1b[2J"`},
		"a long name": {func(c *Cycle) { c.Files[0].Name = strings.Repeat("x", 256) },
			"file 0 has the name"},
		"short fingerprint": {func(c *Cycle) { c.Files[0].Fingerprint = "abc" },
			`fingerprint "abc", not 32 hex digits`},
		"other fingerprint": {func(c *Cycle) { c.Files[0].Fingerprint = strings.Repeat("G", 32) },
			"not 32 hex digits"},
		"file -1":              {func(c *Cycle) { c.Reads[2].File = -1 }, "read 2 is of file -1 of 2"},
		"file 2":               {func(c *Cycle) { c.Reads[2].File = 2 }, "read 2 is of file 2 of 2"},
		"no tensor":            {func(c *Cycle) { c.Reads[1].Tensor = "" }, `read 1 is of tensor ""`},
		"op with a line break": {func(c *Cycle) { c.Reads[1].Op = "A\nB" }, `by op "A\nB"`},
		"before the file":      {func(c *Cycle) { c.Reads[1].Offset = -1 }, "64 bytes at -1"},
		"behind the file": {func(c *Cycle) { c.Reads[1].Offset = 49937 },
			"64 bytes at 49937 of a file of 50000"},
		"far behind the file":    {func(c *Cycle) { c.Reads[1].Offset = math.MaxInt64 }, "of a file of 50000"},
		"longer than the file":   {func(c *Cycle) { c.Reads[1].Length = math.MaxInt64 }, "of a file of 50000"},
		"no bytes":               {func(c *Cycle) { c.Reads[1].Length = 0 }, "read 1 is of 0 bytes"},
		"negative bytes":         {func(c *Cycle) { c.Reads[1].Length = -64 }, "read 1 is of -64 bytes"},
		"slices of nothing":      {func(c *Cycle) { c.Reads[1].Slices = 3 }, "3 slices of 0 bytes"},
		"experts of nothing":     {func(c *Cycle) { c.Reads[1].Experts = true }, "0 slices of 0 bytes"},
		"negative slices":        {func(c *Cycle) { c.Reads[2].Slices = -1 }, "-1 slices of 1000 bytes"},
		"no slices":              {func(c *Cycle) { c.Reads[2].Slices = 0 }, "0 slices of 1000 bytes"},
		"negative slice":         {func(c *Cycle) { c.Reads[2].Slice = -1000 }, "2 slices of -1000 bytes"},
		"more slices than there": {func(c *Cycle) { c.Reads[2].Slices = 9 }, "9 slices of 1000 bytes, of 8000"},
		"slices without end":     {func(c *Cycle) { c.Reads[2].Slices = math.MaxInt }, "slices of 1000 bytes, of 8000"},
		"negative time":          {func(c *Cycle) { c.Reads[2].Nanos = -2 }, "read 2 takes -2 ns"},
		"time without end": {func(c *Cycle) { c.Reads[2].Nanos, c.Reads[3].Nanos = math.MaxInt64-1000, 1000 },
			"take too long"},
		"reads without end": {func(c *Cycle) {
			c.Files[0].Size = math.MaxInt64 - 50000
			c.Reads[0].Length, c.Reads[3].Length = math.MaxInt64/2, math.MaxInt64/2+1
		}, "reads together are too large"},
	} {
		t.Run(name, func(t *testing.T) {
			c := small()
			tc.damage(c)
			if err := c.Write(io.Discard); !errors.Is(err, ErrInvalid) {
				t.Errorf("written with error %v; want %v", err, ErrInvalid)
			}
			var b bytes.Buffer
			fmt.Fprintf(&b, `{"pattern_schema": %d, `, SchemaVersion)
			for _, err := range []error{writeList(&b, filesKey, c.Files),
				func() error { b.WriteString(", "); return nil }(), writeList(&b, readsKey, c.Reads)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			b.WriteString("}")
			refused(t, &b, ErrInvalid, tc.says)
		})
	}
}

// The longest names that a file, a tensor and an op may have are written and read.
func TestLongestNames(t *testing.T) {
	want := small()
	longest := strings.Repeat("x", 255)
	want.Files[0].Name, want.Reads[1].Tensor, want.Reads[1].Op = longest, longest, longest
	var b bytes.Buffer
	if err := want.Write(&b); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadCycle(&b); err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("it reads %+v, %v; want %+v", c, err, want)
	}
}

func refused(t *testing.T, r io.Reader, want error, says string) {
	t.Helper()
	c, err := ReadCycle(r)
	if c != nil || !errors.Is(err, want) || !strings.Contains(err.Error(), says) ||
		strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 500 {
		t.Errorf("cycle %v, error %.1000v, want one line of %v with %q", c, err, want, says)
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		err  error
		says string
	}{
		"nothing":           {"", ErrInvalid, "ends too early"},
		"a half":            {smallText[:len(smallText)/2], ErrInvalid, "ends too early"},
		"no end":            {strings.TrimSpace(smallText[:len(smallText)-2]), ErrInvalid, "ends too early"},
		"a list":            {"[1]", ErrInvalid, "no JSON object"},
		"a number":          {"7", ErrInvalid, "no JSON object"},
		"no JSON":           {"seq,tensor_name\n1,x", ErrInvalid, "invalid character"},
		"another JSON":      {`{"schema": 5, "started": "now"}`, ErrInvalid, `no "pattern_schema"`},
		"a later version":   {strings.Replace(smallText, "1", "2", 1), ErrSchema, "2, and this program reads 1"},
		"a version as text": {strings.Replace(smallText, "1", `"1"`, 1), ErrInvalid, "string"},
		"a huge version":    {strings.Replace(smallText, "1", strings.Repeat("1", 1<<20), 1), ErrInvalid, "number"},
		"two of them":       {smallText + smallText, ErrInvalid, "something follows"},
		"reads twice": {strings.Replace(smallText, `"files"`, `"reads": [], "files"`, 1), ErrInvalid,
			`"reads" comes twice`},
		"reads that are not": {`{"pattern_schema": 1, "reads": {}}`, ErrInvalid, `"reads" is no list`},
		"files that are not": {`{"pattern_schema": 1, "files": null}`, ErrInvalid, `"files" is no list`},
		"an empty read":      {strings.Replace(smallText, `"reads": [`, `"reads": [null,`, 1), ErrInvalid, "read 0"},
		"text for a number":  {strings.Replace(smallText, "4096", `"4096"`, 1), ErrInvalid, "reads 0: "},
		"a fraction":         {strings.Replace(smallText, "4096", "40.5", 1), ErrInvalid, "reads 0: "},
		"a great number":     {strings.Replace(smallText, "4096", "9223372036854775808", 1), ErrInvalid, "reads 0: "},
		"deep nesting":       {`{"x": ` + strings.Repeat("[", 1<<20), ErrInvalid, "depth"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, strings.NewReader(tc.text), tc.err, tc.says) })
	}
}

// endless is an endless text.
type endless struct {
	rest, element string
	read          int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.rest == "" {
		e.rest = strings.Repeat(e.element, 100)
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	e.read += n
	return n, nil
}

// Of any input only a bounded part is read, in little memory.
func TestReadIsBounded(t *testing.T) {
	testenv.SkipWithRace(t)
	long := func(head, element string) io.Reader {
		return strings.NewReader(head + strings.Repeat(element, (maxBytes-len(head))/len(element)))
	}
	for name, tc := range map[string]struct {
		text io.Reader
		says string
	}{
		"reads":          {long(`{"pattern_schema": 1, "reads": [{}`, `,{}`), "more than 32768 reads"},
		"files":          {long(`{"pattern_schema": 1, "files": [{}`, `,{}`), "more than 4096 files"},
		"more to say":    {long(`{"pattern_schema": 1, "x": [1`, ",1"), "too early"},
		"space":          {long("", " "), "too early"},
		"reads for ever": {&endless{rest: `{"pattern_schema": 1, "reads": [{}`, element: `,{}`}, "longer than 16 MiB"},
		"text for ever":  {&endless{rest: `{"pattern_schema": 1, "x": "`, element: "x"}, "longer than 16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			refused(t, tc.text, ErrInvalid, tc.says)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 20*maxBytes {
				t.Errorf("%d MiB were allocated; want at most %v", n>>20, 20*maxBytes)
			}
			if e, ok := tc.text.(*endless); ok && e.read > maxBytes+1 {
				t.Errorf("%d bytes were read", e.read)
			}
		})
	}
}

// A pattern of a large model stays small.
func TestSize(t *testing.T) {
	c := &Cycle{Files: small().Files[:1]}
	for layer := range 80 {
		for i := range 14 {
			c.Reads = append(c.Reads, CycleRead{
				Tensor: fmt.Sprintf("blk.%d.attn_output_%d.weight", layer, i), Op: "MUL_MAT",
				Offset: 9000, Length: 8000, Nanos: 123456,
			})
		}
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 200<<10 {
		t.Errorf("%d reads take %d bytes; want at most %v", len(c.Reads), b.Len(), 200<<10)
	}
}

// FuzzReadCycle checks that any cycle that can be read is consistent, and stays the same when it is
// written and read again.
func FuzzReadCycle(f *testing.F) {
	f.Add([]byte(smallText))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ReadCycle(bytes.NewReader(data))
		if err != nil {
			if c != nil || !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrSchema) {
				t.Fatalf("cycle %+v, error %v", c, err)
			}
			return
		}
		var size int64
		for _, file := range c.Files {
			size += file.Size
		}
		if n := c.Bytes(); n <= 0 || n > size {
			t.Errorf("%d bytes of files of %d", n, size)
		}
		for i := range c.Reads {
			if r := &c.Reads[i]; r.Offset < 0 || r.End() <= r.Offset || r.End() > c.Files[r.File].Size ||
				r.Gathers() && r.Slice*int64(r.Slices) > r.Length {
				t.Errorf("read %+v of %+v", *r, c.Files[r.File])
			}
		}
		if _, err := c.MatchFiles(c.Files); err != nil {
			t.Error(err)
		}
		var b bytes.Buffer
		if err := c.Write(&b); err != nil {
			t.Fatal(err)
		}
		again, err := ReadCycle(&b)
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Errorf("%+v, %v after writing, %+v before", again, err, c)
		}
	})
}
