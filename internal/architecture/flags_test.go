package architecture_test

// This file checks that no error of a library names a command's flag.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// foreignFlags are flags of other programs, mostly llama.cpp's, that errors may name.
var foreignFlags = []string{"--no-repack", "--no-mmap", "--load-mode", "--merge"}

var flagName = regexp.MustCompile(`(?:^|[^\w-])(--[a-z][a-z-]*)`)

// findFlags lists the flags of our own commands that a message names.
func findFlags(message string) (flags []string) {
	for _, found := range flagName.FindAllStringSubmatch(message, -1) {
		if !slices.Contains(foreignFlags, found[1]) {
			flags = append(flags, found[1])
		}
	}
	return flags
}

// The errors of a library name no flags, because it does not know who calls it. The command adds such advice.
func TestLibrariesNameNoFlags(t *testing.T) {
	const sample = "wrong: use --json, or (`--csv`) without --no-repack, not a-b -- c"
	if got, want := findFlags(sample), []string{"--json", "--csv"}; !slices.Equal(got, want) {
		t.Fatalf("flags in %q: %q, want %q", sample, got, want)
	}
	messages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		pkg, _ := filepath.Rel(root, filepath.Dir(path))
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			isCommand(pkg) {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 || !isError(call) {
				return true
			}
			ast.Inspect(call.Args[0], func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					messages++
					message, _ := strconv.Unquote(text.Value)
					for _, flag := range findFlags(message) {
						t.Errorf("%s: an error of a library names the flag %s, want none",
							set.Position(text.Pos()), flag)
					}
				}
				return true
			})
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if messages < 300 {
		t.Errorf("%d messages were checked, want at least 300: this test does not find them", messages)
	}
}

// isError says whether a call makes an error from a text.
func isError(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := f.X.(*ast.Ident)
	return ok && (from.Name == "fmt" && f.Sel.Name == "Errorf" || from.Name == "errors" && f.Sel.Name == "New")
}
