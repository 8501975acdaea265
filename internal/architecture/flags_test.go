package architecture_test

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

// foreign are flags of other programs, llama.cpp's above all, that errors may name.
var foreign = []string{"--no-repack", "--no-mmap", "--load-mode", "--merge"}

var flagName = regexp.MustCompile(`(?:^|[^\w-])(--[a-z][a-z-]*)`)

// named lists the flags of ours that a message names.
func named(message string) (flags []string) {
	for _, found := range flagName.FindAllStringSubmatch(message, -1) {
		if !slices.Contains(foreign, found[1]) {
			flags = append(flags, found[1])
		}
	}
	return flags
}

// The errors of a library name no flags: it does not know who calls it. The command adds that advice.
func TestLibrariesNameNoFlags(t *testing.T) {
	if got := named("wrong: use --json, or (`--csv`) without --no-repack, not a-b -- c"); !slices.Equal(got, []string{"--json", "--csv"}) {
		t.Fatalf("flags %q", got)
	}
	messages := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		pkg, _ := filepath.Rel(root, filepath.Dir(path))
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || command(pkg) {
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
					for _, flag := range named(message) {
						t.Errorf("%s: an error of a library names the flag %s", set.Position(text.Pos()), flag)
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
		t.Errorf("%d messages: this test does not find them", messages)
	}
}

// isError says whether a call makes an error of a text.
func isError(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := f.X.(*ast.Ident)
	return ok && (from.Name == "fmt" && f.Sel.Name == "Errorf" || from.Name == "errors" && f.Sel.Name == "New")
}
