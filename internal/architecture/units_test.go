package architecture_test

// This file checks that sizes are told in one kind of unit.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// decimalUnit matches a number with a decimal unit of bytes in a format.
var decimalUnit = regexp.MustCompile(`%[-+# 0-9.]*[dfgsv] ?(kB|MB|GB|TB)\b`)

// findDecimalUnits lists what of a file tells sizes in decimal units.
func findDecimalUnits(file *ast.File) (found []ast.Node) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if from, ok := n.X.(*ast.Ident); ok && from.Name == "humanize" && n.Sel.Name == "Bytes" {
				found = append(found, n)
			}
		case *ast.BasicLit:
			text, err := strconv.Unquote(n.Value)
			if err == nil && n.Kind == token.STRING && decimalUnit.MatchString(text) {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

// What the programs print has KiB, MiB and GiB, as memory, page cache and control groups have. Flags take both kinds.
func TestBinaryUnits(t *testing.T) {
	sample := "package p\nvar a, b = humanize.Bytes(1), f(\"at %.2f GB/s\", `%d MiB`)\n"
	file, err := parser.ParseFile(token.NewFileSet(), "sample.go", sample, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(findDecimalUnits(file)); n != 2 {
		t.Fatalf("%d places of the sample were found, want 2", n)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if path == filepath.Join(root, "internal", "sizes", "sizes.go") {
			return nil // it repeats a size in the unit in which somebody has written it
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, n := range findDecimalUnits(file) {
			t.Errorf("%s: a size is told in decimal units, want KiB, MiB or GiB", set.Position(n.Pos()))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
