package inspect

// These tests compare the tables with what is known of small models.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
)

// open writes the models and opens them.
func open(t *testing.T, models ...*gguftest.Model) []*gguf.Model {
	t.Helper()
	dir := t.TempDir()
	var opened []*gguf.Model
	for i, m := range models {
		path := filepath.Join(dir, fmt.Sprintf("m%d.gguf", i))
		m.Write(t, path)
		o, err := gguf.OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		opened = append(opened, o)
	}
	return opened
}

// collect returns all rows of a table at once.
func collect(t *Table) ([]Column, error) {
	var all []Column
	for batch, err := range t.Batches() {
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = batch
			continue
		}
		for i, c := range batch {
			all[i].Values = reflect.AppendSlice(reflect.ValueOf(all[i].Values), reflect.ValueOf(c.Values)).Interface()
		}
	}
	return all, nil
}

// rows are the cells as text, a string per row.
func rows(t *testing.T, table *Table) []string {
	t.Helper()
	columns, err := collect(table)
	if err != nil {
		t.Fatal(err)
	}
	n := reflect.ValueOf(columns[0].Values).Len()
	all := make([]string, n)
	for i := range all {
		var cells []string
		for _, c := range columns {
			v := reflect.ValueOf(c.Values).Index(i)
			if v.Kind() == reflect.Pointer && !v.IsNil() {
				v = v.Elem()
			}
			cells = append(cells, fmt.Sprint(v))
		}
		all[i] = strings.Join(cells, " ")
	}
	return all
}

const sixNames = "tensor_name offset_bytes size_bytes type layer component"

func expectTable(t *testing.T, table *Table, columns string, want []string) {
	t.Helper()
	if got := strings.Join(table.Names(), " "); got != columns {
		t.Errorf("columns %s, want %s", got, columns)
	}
	if got := rows(t, table); !reflect.DeepEqual(got, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func pair() *gguftest.Model {
	return &gguftest.Model{Tensors: []gguftest.Tensor{
		{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{5}},
		{Name: "blk.3.ffn_up_exps.weight", Type: gguf.Q8_0, Shape: []int64{32, 2, 3}},
	}}
}

func TestStructure(t *testing.T) {
	one := open(t, pair())
	d := one[0].Files[0].DataOffset
	norm := fmt.Sprintf("output_norm.weight %d 20 F32 -1 output_norm.weight", d)
	exps := fmt.Sprintf("blk.3.ffn_up_exps.weight %d 204 Q8_0 3 ffn_up_exps.weight", d+32)
	expectTable(t, Structure(one), sixNames, []string{norm, exps})

	two := open(t, pair(), pair())
	expectTable(t, Structure(two), sixNames+" file", []string{
		norm + " m0.gguf", exps + " m0.gguf", norm + " m1.gguf", exps + " m1.gguf",
	})

	// Two files with the same name are shown by their paths.
	same := append(open(t, pair()), open(t, pair())...)
	p0, p1 := same[0].Files[0].Path, same[1].Files[0].Path
	expectTable(t, Structure(same), sixNames+" file", []string{
		norm + " " + p0, exps + " " + p0, norm + " " + p1, exps + " " + p1,
	})
}

func TestStructureWide(t *testing.T) {
	models := open(t, pair())
	// Read the whole file into the page cache.
	data, err := os.ReadFile(models[0].Files[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	d := models[0].Files[0].DataOffset
	table := Wide(models, func(err error) { t.Error(err) })
	expectTable(t, table, sixNames+" file shape expert_count expert_stride_bytes kind resident_bytes", []string{
		fmt.Sprintf("output_norm.weight %d 20 F32 -1 output_norm.weight m0.gguf 5 0 0 norm 20", d),
		fmt.Sprintf("blk.3.ffn_up_exps.weight %d 204 Q8_0 3 ffn_up_exps.weight m0.gguf 32x2x3 3 68 expert 204", d+32),
	})
	if err := os.WriteFile(models[0].Files[0].Path, data[:len(data)-100], 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(table); !errors.Is(err, gguf.ErrChanged) {
		t.Errorf("error %v, want %v", err, gguf.ErrChanged)
	}
}

func TestExperts(t *testing.T) {
	m := &gguftest.Model{Tensors: []gguftest.Tensor{
		{Name: "blk.0.ffn_gate_up_exps.weight", Type: gguf.Q4_0, Shape: []int64{32, 4, 2}},
		{Name: "blk.0.ffn_down_exps.bias", Type: gguf.F32, Shape: []int64{3, 2}},
		{Name: "blk.0.ffn_up_shexp.weight", Type: gguf.F32, Shape: []int64{3, 2}},
		{Name: "blk.0.ffn_gate_inp.weight", Type: gguf.F32, Shape: []int64{3, 2}},
		{Name: "blk.1.ffn_up.7.weight", Type: gguf.F32, Shape: []int64{3, 2}},
	}}
	models := open(t, m)
	d := models[0].Files[0].DataOffset
	table, err := Experts(models)
	if err != nil {
		t.Fatal(err)
	}
	expectTable(t, table, sixNames+" expert projection", []string{
		fmt.Sprintf("blk.0.ffn_gate_up_exps.weight %d 72 Q4_0 0 ffn_gate_up_exps.weight 0 gate_up", d),
		fmt.Sprintf("blk.0.ffn_gate_up_exps.weight %d 72 Q4_0 0 ffn_gate_up_exps.weight 1 gate_up", d+72),
		fmt.Sprintf("blk.0.ffn_down_exps.bias %d 12 F32 0 ffn_down_exps.bias 0 down", d+160),
		fmt.Sprintf("blk.0.ffn_down_exps.bias %d 12 F32 0 ffn_down_exps.bias 1 down", d+160+12),
		fmt.Sprintf("blk.1.ffn_up.7.weight %d 24 F32 1 ffn_up.7.weight 7 ", d+160+32+32+32),
	})
	if table, err = Experts(append(models, models...)); err != nil || len(rows(t, table)) != 10 {
		t.Errorf("%v, %v, want 10 rows", rows(t, table), err)
	}
	// A file that takes no space claims 2^30 experts of one byte each.
	huge := open(t, &gguftest.Model{
		Tensors: []gguftest.Tensor{{Name: "blk.0.ffn_up_exps.weight", Type: gguf.I8, Shape: []int64{1, 1, 1 << 30}}},
	})
	if _, err := Experts(huge); err == nil || !strings.Contains(err.Error(), "more rows than a table") {
		t.Errorf("error %v, want one that says the table is too long", err)
	}
}

// Every byte of a slice belongs to the expert that Locate returns.
func TestExpertsAgreeWithLocate(t *testing.T) {
	models := open(t, gguftest.MoE(3, 4))
	table, err := Experts(models)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := collect(table)
	if err != nil {
		t.Fatal(err)
	}
	var (
		tensors = columns[0].Values.([]string)
		offsets = columns[1].Values.([]int64)
		sizes   = columns[2].Values.([]int64)
		experts = columns[6].Values.([]int32)
	)
	owner := map[int64]int{}
	for i := range offsets {
		for off := offsets[i]; off < offsets[i]+sizes[i]; off++ {
			owner[off] = i
		}
	}
	for off := range models[0].Files[0].Size {
		l, ok := models[0].Locate(0, off)
		i, isExpert := owner[off]
		if isExpert != (ok && l.Expert >= 0) || isExpert &&
			(l.Tensor.Name != tensors[i] || l.Expert != int(experts[i])) {
			t.Fatalf("byte %d: %+v, the table says row %d", off, l, i)
		}
	}
}

func TestMetadata(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	models := open(t, &gguftest.Model{KVs: []gguftest.KV{
		{Key: "u16", Value: uint16(7)}, {Key: "i32", Value: int32(-7)}, {Key: "f32", Value: float32(0.1)},
		{Key: "nan", Value: nan}, {Key: "bool", Value: true},
		{Key: "text", Value: "two\nlines, <b>\"quoted\"</b>"}, {Key: "escape", Value: "\x1b[2J"},
		{Key: "bytes", Value: "a\xff"}, {Key: "bidi", Value: "a\u202eb"},
		{Key: "strings", Value: []string{"a", "\"", "\x00"}}, {Key: "floats", Value: []float32{0.1, nan, inf}},
		{Key: "none", Value: []int32{}},
	}})
	expectTable(t, Metadata(models, 2), "key type length value", []string{
		"u16 u16 1 7", "i32 i32 1 -7", "f32 f32 1 0.1", "nan f32 1 \"NaN\"", "bool bool 1 true",
		"text str 1 two\nlines, <b>\"quoted\"</b>", `escape str 1 "\u001b[2J"`, `bytes str 1 "a\ufffd"`,
		"bidi str 1 \"a\u202eb\"",
		`strings arr[str] 3 ["a","\""]`, `floats arr[f32] 3 [0.1,"NaN"]`, "none arr[i32] 0 []",
	})
	var out bytes.Buffer
	if err := Metadata(models, -1).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got []struct {
		Key   string
		Value any
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	want := []any{7.0, -7.0, 0.1, "NaN", true, "two\nlines, <b>\"quoted\"</b>", "\x1b[2J", "a\ufffd", "a\u202eb",
		[]any{"a", "\"", "\x00"}, []any{0.1, "NaN", "+Inf"}, []any{}}
	for i, w := range want {
		if !reflect.DeepEqual(got[i].Value, w) {
			t.Errorf("%s: %v, want %v", got[i].Key, got[i].Value, w)
		}
	}
	if got := Metadata(append(models, models[0]), 0).Names(); got[0] != "key" {
		t.Errorf("one file twice: columns %v, want key first", got)
	}
	if got := Metadata(append(models, open(t, pair())...), 0).Names(); got[0] != "file" {
		t.Errorf("two files: columns %v, want file first", got)
	}
}

func TestWrite(t *testing.T) {
	table := &Table{columns: []column{{"s", text}, {"i", int32s}, {"l", int64s}, {"n", int64sOrNull}, {"f", floats}}}
	table.each = func(row func([]cell) error) error {
		if err := row([]cell{str("a\"b"), num(1), num(int64(1 << 62)), num(7), {f: 0.1}}); err != nil {
			return err
		}
		return row([]cell{str("<é>"), num(-2), num(0), {null: true}, {f: math.Inf(-1)}})
	}
	var out bytes.Buffer
	if err := table.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	want := "[\n" + `{"s":"a\"b","i":1,"l":4611686018427387904,"n":7,"f":0.1},` + "\n" +
		`{"s":"<é>","i":-2,"l":0,"n":null,"f":"-Inf"}` + "\n]\n"
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
	out.Reset()
	if err := table.WriteCSV(&out); err != nil ||
		out.String() != "s,i,l,n,f\n\"a\"\"b\",1,4611686018427387904,7,0.1\n<é>,-2,0,,-Inf\n" {
		t.Errorf("CSV %s, %v", &out, err)
	}
	for _, err := range []error{table.WriteJSON(failing{}), table.WriteCSV(failing{})} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("error %v, want %v", err, os.ErrClosed)
		}
	}
	out.Reset()
	if err := FindingsTable(nil).WriteJSON(&out); err != nil || !json.Valid(out.Bytes()) {
		t.Errorf("no rows: %s, %v", out.Bytes(), err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestSummarise(t *testing.T) {
	const (
		embd  = 4 * 68 // 64 values of Q8_0 in 68 bytes
		norm  = 4 * 64
		q     = 64 * 68
		inp   = 4 * 64 * 4
		slice = 32 * 36 // of a gate or up matrix of one expert
		bias  = 4 * 64 * 4
		shexp = 32 * 68
		exps  = 2*3*4*slice + 2*bias
		total = 2*embd + norm + 2*(norm+q+inp+shexp) + exps
	)
	s := Summarise(open(t, gguftest.MoE(2, 4)))[0]
	want := map[string]SummaryRow{
		"tensors all":                           {Tensors: 18, Bytes: total},
		"read always":                           {Tensors: 10, Bytes: total - exps - embd},
		"read lookup":                           {Tensors: 1, Bytes: embd},
		"read experts":                          {Tensors: 7, Bytes: exps},
		"read experts of a token":               {Tensors: 7, Bytes: exps / 2},
		"kind expert":                           {Tensors: 7, Bytes: exps},
		"kind norm":                             {Tensors: 3, Bytes: 3 * norm},
		"kind shared_expert":                    {Tensors: 2, Bytes: 2 * shexp},
		"kind router":                           {Tensors: 2, Bytes: 2 * inp},
		"kind attention":                        {Tensors: 2, Bytes: 2 * q},
		"kind embedding":                        {Tensors: 1, Bytes: embd},
		"kind output":                           {Tensors: 1, Bytes: embd},
		"layer none":                            {Tensors: 3, Bytes: 2*embd + norm},
		"layer 0":                               {Tensors: 8, Bytes: norm + q + inp + shexp + exps/2},
		"layer 1":                               {Tensors: 7, Bytes: norm + q + inp + shexp + exps/2},
		"type Q8_0":                             {Tensors: 6, Bytes: 2*embd + 2*q + 2*shexp},
		"type Q4_0":                             {Tensors: 5, Bytes: exps - 2*bias},
		"type F32":                              {Tensors: 7, Bytes: 3*norm + 2*inp + 2*bias},
		"component attn_q.weight":               {Tensors: 2, Bytes: 2 * q},
		"largest blk.1.ffn_gate_up_exps.weight": {Tensors: 1, Bytes: 8 * slice},
	}
	shares := map[string]float64{}
	for _, r := range s.Rows {
		key := r.Group + " " + r.Name
		if w, ok := want[key]; ok {
			if r.Tensors != w.Tensors || r.Bytes != w.Bytes {
				t.Errorf("%s: %d tensors, %d bytes, want %d, %d", key, r.Tensors, r.Bytes, w.Tensors, w.Bytes)
			}
			delete(want, key)
		}
		if r.Name != "experts of a token" {
			shares[r.Group] += r.Share
		}
	}
	for key := range want {
		t.Errorf("no row %s", key)
	}
	for group, share := range shares {
		if math.Abs(share-1) > 1e-9 && group != "largest" {
			t.Errorf("the shares of group %s add up to %v, want 1", group, share)
		}
	}
	if s.Model != "m0.gguf" || s.Files != 1 || s.Bytes <= total {
		t.Errorf("summary %+v, want m0.gguf in one file of more than %d bytes", s, total)
	}

	// Without an output matrix, all of the embeddings is read.
	tied := gguftest.MoE(1, 4)
	tied.Tensors[1].Name = "blk.0.attn_k.weight"
	for _, r := range Summarise(open(t, tied))[0].Rows {
		if r.Name == "lookup" {
			t.Error("tied embeddings count as a lookup")
		}
	}

	var text bytes.Buffer
	if err := s.WriteText(&text); err != nil || !strings.Contains(text.String(), "m0.gguf: ") ||
		!strings.Contains(text.String(), "\nexperts of a token ") {
		t.Errorf("%v; the summary lacks the model or the experts of a token:\n%s", err, &text)
	}
	if err := s.WriteText(failing{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v, want %v", err, os.ErrClosed)
	}
	expect := "group name tensors size_bytes share"
	if got := strings.Join(SummaryTable([]*Summary{s}).Names(), " "); got != expect {
		t.Errorf("columns %s", got)
	}
	if got := strings.Join(SummaryTable([]*Summary{s, s}).Names(), " "); got != "model "+expect {
		t.Errorf("columns %s", got)
	}
	// A part of a split model may hold metadata alone.
	if s := Summarise(open(t, &gguftest.Model{}))[0]; len(s.Rows) != 0 || s.WriteText(&text) != nil {
		t.Errorf("summary %+v, want no rows", s)
	}
}

func TestCheck(t *testing.T) {
	set := func(key string, value any) func(*gguftest.Model) {
		return func(m *gguftest.Model) {
			for i := range m.KVs {
				if m.KVs[i].Key == key {
					m.KVs[i].Value = value
					return
				}
			}
			m.KVs = append(m.KVs, gguftest.KV{Key: key, Value: value})
		}
	}
	last := func(m *gguftest.Model) *gguftest.Tensor { return &m.Tensors[len(m.Tensors)-1] }
	two := func(typ gguf.Type) func(*gguftest.Model) {
		return func(m *gguftest.Model) {
			for i := range 2 {
				m.Tensors = append(m.Tensors, gguftest.Tensor{
					Name: fmt.Sprintf("blk.%d.ffn_fork.weight", i), Type: typ, Shape: []int64{512, 64},
				})
			}
		}
	}
	tests := []struct {
		name string
		edit func(m *gguftest.Model)
		want []string
	}{
		{"sound", func(*gguftest.Model) {}, nil},
		{"no architecture", func(m *gguftest.Model) { m.KVs = m.KVs[1:] }, []string{"no general.architecture"}},
		{
			"long name", func(m *gguftest.Model) { last(m).Name = "blk.1." + strings.Repeat("x", 58) },
			[]string{"tensor blk.1.x", "the name has 64 bytes"},
		},
		{"longest name", func(m *gguftest.Model) { last(m).Name = "blk.1." + strings.Repeat("x", 57) }, nil},
		{
			"layer missing", func(m *gguftest.Model) { last(m).Name = "blk.3.attn_q.weight" },
			[]string{"3 layers, the highest is 3: layer 2 is missing", "4 layers, qwen3moe.block_count says 2"},
		},
		{"fewer layers", set("qwen3moe.block_count", uint32(1)), []string{"2 layers, qwen3moe.block_count says 1"}},
		{
			"experts differ", set("qwen3moe.expert_count", uint32(8)),
			[]string{"tensor blk.0.ffn_gate_exps.weight: 4 experts, qwen3moe.expert_count says 8"},
		},
		{"experts unsaid", set("general.architecture", "other"), []string{"4 experts, and no other.expert_count"}},
		{
			"more used than there are", set("qwen3moe.expert_used_count", uint32(5)),
			[]string{"qwen3moe.expert_used_count is 5, of 4 experts"},
		},
		{
			"scores", set("tokenizer.ggml.scores", []float32{1}),
			[]string{"tokenizer.ggml.scores has 1 elements for 4 tokens"},
		},
		{
			"token types", set("tokenizer.ggml.token_type", []int32{1, 2, 3, 4, 5}),
			[]string{"tokenizer.ggml.token_type has 5 elements for 4 tokens"},
		},
		{
			"token id", set("tokenizer.ggml.bos_token_id", uint32(4)),
			[]string{"tokenizer.ggml.bos_token_id is 4, there are 4 tokens"},
		},
		{"no token", set("tokenizer.ggml.bos_token_id", uint32(math.MaxUint32)), nil},
		{"no tokens", func(m *gguftest.Model) { m.KVs = m.KVs[:4] }, nil},
		{
			"a type of a fork", two(144),
			[]string{"tensor blk.0.ffn_fork.weight: 2 tensors of type IQ4_KS of ik_llama.cpp, which llama.cpp refuses"},
		},
		{
			"an unknown type", func(m *gguftest.Model) {
				last(m).Type, m.Sizes = 999, map[string]int64{last(m).Name: 64}
			},
			[]string{"tensor blk.1.ffn_up_shexp.weight: 1 tensor of unknown type(999), of which only the extent is known " +
				"(mapping, tracing and replay need no more), which llama.cpp refuses"},
		},
		{
			"the first layout of Q2_0", two(gguf.Q2_0G128),
			[]string{"tensor blk.0.ffn_fork.weight: 2 tensors of type Q2_0 in groups of 128, as it was published before " +
				"ggml had it with groups of 64, which llama.cpp refuses"},
		},
		{
			"a dimension of 0", func(m *gguftest.Model) { last(m).Shape = []int64{64, 0} },
			[]string{"tensor blk.1.ffn_up_shexp.weight: dimension 1 is 0: llama.cpp divides by it, " +
				"and some versions end there"},
		},
		{
			"the first dimension of 0", func(m *gguftest.Model) { last(m).Shape = []int64{0, 64} },
			[]string{"tensor blk.1.ffn_up_shexp.weight: it has no elements, but llama.cpp reads it"},
		},
		{"no dimensions", func(m *gguftest.Model) {
			last(m).Type, last(m).Shape, m.Sizes = gguf.F32, nil, map[string]int64{last(m).Name: 4}
		}, nil},
		{"a small alignment", func(m *gguftest.Model) { m.Alignment = 8 },
			[]string{"the tensors begin at byte 1560, which is no multiple of 32 (general.alignment is 8): " +
				"llama.cpp aborts when it maps the file (--no-mmap reads it)"}},
		{"a small alignment that does no harm", func(m *gguftest.Model) {
			m.Alignment = 16
			m.KVs = append(m.KVs, gguftest.KV{Key: "k", Value: strings.Repeat("x", 10)})
		}, nil},
		{"half of the padding",
			func(m *gguftest.Model) { last(m).Type, last(m).Shape, m.Cut = gguf.F32, []int64{1}, 16 },
			[]string{"the padding behind the last tensor lacks 16 bytes: llama.cpp loads the model, but ggml " +
				"refuses to read all of the file's data at once"}},
		{
			"names that are no text", func(m *gguftest.Model) {
				for i, name := range []string{"", "a\xff", "a\x1b[2J", "a\x00b"} {
					m.Tensors[i].Name = name
				}
				m.KVs = append(m.KVs, gguftest.KV{Key: "\u202ek", Value: true})
			},
			[]string{
				`the key "\u202ek" is no printable text, but llama.cpp reads it`,
				"has no name, but llama.cpp reads it",
				`tensor a\xff: the name is no printable text, but llama.cpp reads it`,
				`tensor a\x1b[2J: the name is no printable text, but llama.cpp reads it`,
				`tensor a\x00b: the name has a zero byte, at which llama.cpp takes it to end`,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := gguftest.MoE(2, 4)
			tt.edit(m)
			models := open(t, m)
			findings := Check(models[0])
			var text strings.Builder
			for _, f := range findings {
				if !strings.HasPrefix(f.String(), models[0].Files[0].Path+": ") {
					t.Errorf("%s does not name the file", f)
				}
				fmt.Fprintln(&text, f)
			}
			if (len(findings) == 0) != (tt.want == nil) {
				t.Errorf("findings:\n%s", &text)
			}
			for _, w := range tt.want {
				if !strings.Contains(text.String(), w) {
					t.Errorf("findings\n%sdo not say %q", &text, w)
				}
			}
			if got := rows(t, FindingsTable(findings)); len(got) != len(findings) {
				t.Errorf("%d rows", len(got))
			}
		})
	}
}

func TestCheckFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	gguftest.MoE(1, 2).Write(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()+100); err != nil {
		t.Fatal(err)
	}
	m, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	f := m.Files[0]
	f.Version, f.BigEndian = 1, true // as if
	f.Tensors = append(f.Tensors[:2], f.Tensors[3:]...)
	want := []string{
		path + ": GGUF version 1, which llama.cpp no longer reads",
		path + ": big endian, which llama.cpp reads on big-endian machines only",
		fmt.Sprintf("%s: tensor blk.0.attn_norm.weight: the 256 bytes before it, from byte %d, are no tensor's", path,
			f.Tensors[2].Offset-256),
		fmt.Sprintf("%s: the last 100 bytes, from byte %d, are no tensor's", path, info.Size()),
	}
	var got []string
	for _, f := range Check(m) {
		got = append(got, f.String())
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("findings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Models that real programs wrote have no faults.
func TestCheckModels(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "..", "..", "shared", "data", "models", "*.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Skip("no models in ../shared/data/models")
	}
	for _, path := range paths {
		m, err := gguf.OpenModel(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range Check(m) {
			t.Error(f)
		}
	}
}
