package architecture_test

// This file checks that no line of code or comment is longer than 120 columns.

import (
	"bufio"
	"bytes"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxColumns = 120
	tabColumns = 4
	// longString is the length in bytes from which a string literal need not be broken: a text for people, or a
	// test's data.
	longString = 60
)

// TestLineLength looks at all files that git knows. Generated files, lines with long string literals, and the commands
// of go:generate, which cannot be broken, may be longer.
func TestLineLength(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "*.go", "*.c", "*.h", "*.s", "*.sh")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("the files are not known: git ls-files: %v", err)
	}
	files := strings.Fields(string(out))
	if len(files) < 500 {
		t.Fatalf("%d files, want 500 at least: this test does not see them", len(files))
	}
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data[:min(len(data), 500)], []byte("DO NOT EDIT")) {
			continue
		}
		var free map[int]bool
		if strings.HasSuffix(name, ".go") {
			free = linesWithLongStrings(data)
		}
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 1<<24)
		for n := 1; lines.Scan(); n++ {
			line := lines.Text()
			columns := utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
			if columns > maxColumns && !free[n] && !strings.HasPrefix(line, "//go:generate ") {
				t.Errorf("%s:%d has %d columns, want %d at most", name, n, columns, maxColumns)
			}
		}
	}
}

// linesWithLongStrings are the lines of a Go file on which a long string literal lies, or a part of one.
func linesWithLongStrings(data []byte) map[int]bool {
	free := map[int]bool{}
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(data))
	var s scanner.Scanner
	s.Init(file, data, nil, 0)
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return free
		}
		if kind == token.STRING && (len(text) >= longString || strings.Contains(text, "\n")) {
			first := file.Line(at)
			for n := range strings.Count(text, "\n") + 1 {
				free[first+n] = true
			}
		}
	}
}
