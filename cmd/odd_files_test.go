package cmd_test

// This file tests that all commands tell of odd model files in the same words.

import (
	"archive/zip"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
	"tensorcast/internal/testenv"
	"tensorcast/processes/processestest"
)

// oddFile is a model file, and what is to be said of it.
type oddFile struct {
	name  string
	write func(t *testing.T, path string)
	table string // of ggufmap; "" if it refuses the file with the words of words
	check string // of ggufmap --check; "" for words
	words string // of everybody; "" if there is nothing to say where bytes are enough
}

// oddModel writes a model with two tensors of one type, each of so many bytes, before one of F32.
func oddModel(typ gguf.Type, bytes int64, change ...func(*gguftest.Model)) func(*testing.T, string) {
	m := &gguftest.Model{
		KVs: []gguftest.KV{{Key: "general.architecture", Value: "llama"}},
		Tensors: []gguftest.Tensor{
			{Name: "blk.0.ffn_up.weight", Type: typ, Shape: []int64{512, 64}},
			{Name: "blk.0.ffn_down.weight", Type: typ, Shape: []int64{512, 64}},
			{Name: "output_norm.weight", Type: gguf.F32, Shape: []int64{1 << 20}}, // enough to measure
		},
		Sizes: map[string]int64{"blk.0.ffn_up.weight": bytes, "blk.0.ffn_down.weight": bytes},
	}
	for _, c := range change {
		c(m)
	}
	return func(t *testing.T, path string) { m.Write(t, path) }
}

// behind writes a model behind other bytes.
func behind(before []byte, archived bool) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		oddModel(gguf.F32, 512*64*4)(t, path)
		model, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		all.Write(before)
		if archived {
			z := zip.NewWriter(&all)
			z.SetOffset(int64(len(before)))
			w, err := z.CreateHeader(&zip.FileHeader{Name: "inside.gguf", Method: zip.Store})
			if err == nil {
				_, err = w.Write(model)
			}
			if err = errors.Join(err, z.Close()); err != nil {
				t.Fatal(err)
			}
		} else {
			all.Write(model)
		}
		if err := os.WriteFile(path, all.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

var oddFiles = []oddFile{
	{"a fork's type, with a head in each row", oddModel(144, 64*(4+2*136)), ",17664,IQ4_KS,0,ffn_up.weight", "",
		"2 tensors of type IQ4_KS of ik_llama.cpp"},
	{"I2_S", oddModel(36, 64*512/4+32), ",8224,I2_S,0,ffn_up.weight", "", "2 tensors of type I2_S of BitNet"},
	{"a ternary type of a fork", oddModel(142, 64*4*34), ",8704,PQ2_0,0,ffn_up.weight", "",
		"2 tensors of type PQ2_0 of PrismML's llama.cpp"},
	{"another ternary type", oddModel(143, 64*4*28), ",7168,PTQ1_0,0,ffn_up.weight", "",
		"2 tensors of type PTQ1_0 of PrismML's llama.cpp"},
	{"a fork's number in another layout", oddModel(143, 64*4*34), ",8704,type(143),0,ffn_up.weight", "",
		"2 tensors of unknown type(143), of which only the extent is known"},
	{"a type of nobody", oddModel(999, 10_000), ",10016,type(999),0,ffn_up.weight", "",
		"2 tensors of unknown type(999), of which only the extent is known"},
	{"Q2_0 in groups of 128", oddModel(42, 64*4*34), ",8704,Q2_0_G128,0,ffn_up.weight", "",
		"2 tensors of type Q2_0 in groups of 128, as it was published before"},
	{"a dimension of 0", oddModel(gguf.F32, 0, func(m *gguftest.Model) {
		m.Tensors[0].Shape, m.Tensors[1].Shape = []int64{512, 0}, []int64{0}
	}), ",0,F32,0,ffn_up.weight", "dimension 1 is 0: llama.cpp divides by it", ""},
	{"no dimensions", oddModel(gguf.F32, 4, func(m *gguftest.Model) {
		m.Tensors[0].Shape, m.Tensors[1].Shape = nil, nil
	}), ",4,F32,0,ffn_up.weight", "", ""},
	{"alignment 8", oddModel(gguf.F32, 512*64*4, func(m *gguftest.Model) { m.Alignment = 8 }), ",131072,F32,0,ffn_up",
		"general.alignment is 8): llama.cpp aborts when it maps the file", ""},
	{"names that are no text", oddModel(gguf.F32, 512*64*4, func(m *gguftest.Model) {
		m.Tensors[0].Name, m.Tensors[1].Name = "", "a\x1b[2J\xff"
	}), `a\x1b[2J\xff,`, `tensor a\x1b[2J\xff: the name is no printable text, but llama.cpp reads it`, ""},
	{"cut in the last padding", oddModel(gguf.F32, 512*64*4, func(m *gguftest.Model) {
		m.Tensors[2].Shape[0], m.Cut = 1<<20+1, 20
	}), ",4194308,F32,-1,output_norm.weight", "the padding behind the last tensor lacks 20 bytes", ""},
	{"cut off", oddModel(gguf.F32, 512*64*4, func(m *gguftest.Model) { m.Cut = 1 << 20 }), "", "",
		"truncated: tensor 2 (\"output_norm.weight\") needs 4194304 bytes"},
	{"overlap", oddModel(gguf.F32, 512*64), "", "", "damaged: tensors \"blk.0.ffn_up.weight\""},
	{"a later version", func(t *testing.T, path string) {
		if err := os.WriteFile(path, append([]byte("GGUF\x09"), make([]byte, 4<<20)...), 0o600); err != nil {
			t.Fatal(err)
		}
	}, "", "", "not supported: GGUF version 9, which is not 1 to 3"},
	{"in an archive behind a program", behind(bytes.Repeat([]byte("program "), 1<<16), true), "", "",
		`the GGUF file "inside.gguf" begins at its byte 524329: it is not read there, so take it out (unzip)`},
	{"behind a program", behind(make([]byte, 1<<20), false), "", "",
		"a GGUF file begins at its byte 1048576: it is not read there, so copy it to a file of its own"},
}

func TestOddFiles(t *testing.T) {
	testenv.NeedRoot(t)
	ggufmap, prefetchd := bin["ggufmap"], bin["prefetchd"]
	program := processestest.Program(t, "llama-server", true)
	run := func(name string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
			t.Errorf("%s %s: %v", filepath.Base(name), strings.Join(args, " "), err)
		}
		return string(out)
	}
	for i, f := range oddFiles {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(testenv.PublicDir(t), fmt.Sprintf("odd%d.gguf", i))
			f.write(t, path)
			process := processestest.Start(t, program, "model", path)
			defer process.End()
			// Both measure the machine, for a second each time.
			forecast, costs := []string{"doctor", "--model", path}, []string{"doctor", "--costs", "--model", path}
			wordsOfCosts := f.words
			if i%2 > 0 {
				forecast, costs, wordsOfCosts = append(forecast, "--json"), append(costs, "--json"), ""
			}
			for what, said := range map[string]struct{ text, want string }{
				"ggufmap":                  {run(ggufmap, path), cmp.Or(f.table, f.words)},
				"ggufmap --check":          {run(ggufmap, "--check", path), cmp.Or(f.check, f.words)},
				"prefetchd doctor --pid":   {run(prefetchd, "doctor", "--pid", fmt.Sprint(process.PID())), f.words},
				"prefetchd doctor --model": {run(prefetchd, forecast...), f.words},
				"prefetchd doctor --costs": {run(prefetchd, costs...), wordsOfCosts},
			} {
				if !strings.Contains(said.text, said.want) {
					t.Errorf("%s says\n%snot %q", what, said.text, said.want)
				}
				if strings.Contains(said.text, "damaged") != strings.HasPrefix(f.words, "damaged") ||
					strings.Contains(said.text, "\x1b") || !utf8.ValidString(said.text) {
					t.Errorf("%s says\n%s", what, said.text)
				}
			}
		})
	}
}
