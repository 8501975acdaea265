package architecture_test

// This file compares the errors that users read with docs/troubleshooting.md.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	// explainedPackages have errors that users read.
	explainedPackages = []string{
		"event", "capture", "capture/preload", "prefetch", "prefetch/readahead",
		"internal/cgroup", "internal/proc", "trace", "gguf", "pattern",
	}
	// selfEvident are errors that are not for users, or that say themselves what to do.
	selfEvident = []string{
		"ErrNeedsProbes", "ErrPlanned", "ErrNoDiskControl", "ErrEnded", "ErrOtherFile", "ErrTraced", "ErrFiltered",
		"ErrNotStopped", "ErrForeign", "ErrCacheFull", "ErrNoDecoder", "ErrNoValue", "ErrNoTable", "ErrTooMuch",
		"ErrSchema", "ErrNoGuess",
	}
)

// readSentinels reads the texts of a package's sentinel errors from its code, by name.
func readSentinels(t *testing.T, pkg string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, "Err") {
				return true
			}
			if call, ok := spec.Values[0].(*ast.CallExpr); ok && len(call.Args) == 1 {
				if text, ok := call.Args[0].(*ast.BasicLit); ok {
					all[spec.Names[0].Name], _ = strconv.Unquote(text.Value)
				}
			}
			return true
		})
	}
	return all
}

// readMessages reads the messages that the troubleshooting page explains: the first cell of each row.
func readMessages(t *testing.T) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]+ \\| [^|]+ \\|$")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		all = append(all, m[1])
	}
	return all
}

// Every error that users read has an entry on the page, and the text of every entry is in the code.
func TestTroubleshooting(t *testing.T) {
	entries, n := readMessages(t), 0
	for _, pkg := range explainedPackages {
		for name, text := range readSentinels(t, pkg) {
			if slices.Contains(selfEvident, name) {
				continue
			}
			n++
			if !slices.ContainsFunc(entries, func(e string) bool {
				return strings.HasPrefix(text, e) || strings.HasPrefix(e, text)
			}) {
				t.Errorf("%s.%s has no entry in docs/troubleshooting.md: %q", pkg, name, text)
			}
		}
	}
	if n < 25 || len(entries) < 40 {
		t.Errorf("%d errors, %d entries, want at least 25 and 40: this test does not find them", n, len(entries))
	}
	var code strings.Builder
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		code.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.Contains(code.String(), e) {
			t.Errorf("docs/troubleshooting.md explains %q, which is not in the code", e)
		}
	}
}
