package architecture_test

// This file checks that all output to a terminal is made safe.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// selectorName is "os.Stdout" for that expression, and "" for one that does not select a name from a name.
func selectorName(n ast.Node) string {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

var (
	// standardStreams may be terminals.
	standardStreams = []string{"os.Stdout", "os.Stderr"}
	// safeFunctions keep text that they are given from acting on a terminal, or write no text.
	safeFunctions = []string{"cli.Run", "cli.Safe", "cli.IsTerminal", "status.NewLine"}
	// printers write to a standard stream without being given one.
	printers = []string{
		"fmt.Print", "fmt.Println", "fmt.Printf", "log.Print", "log.Println", "log.Printf",
		"slog.Default", "slog.Info", "slog.Warn", "slog.Error",
	}
)

// findUnsafe lists where a file uses a standard stream without one of safeFunctions.
func findUnsafe(file *ast.File) (found []ast.Node) {
	allowed := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if slices.Contains(safeFunctions, selectorName(n.Fun)) {
				for _, arg := range n.Args {
					allowed[arg] = true
				}
			}
		case *ast.KeyValueExpr: // a stream that is given to a command which is started
			if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Stdout" || key.Name == "Stderr") {
				allowed[n.Value] = true
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "Fd" {
				allowed[n.X] = true
			}
		}
		name := selectorName(n)
		if !allowed[n] && slices.Contains(standardStreams, name) || slices.Contains(printers, name) {
			found = append(found, n)
		}
		return true
	})
	return found
}

// All that commands print passes internal/cli. It makes characters visible that would act on a terminal.
func TestNothingBypassesTheTerminalsEdge(t *testing.T) {
	set := token.NewFileSet()
	sample := `package p; func f() { fmt.Fprintln(os.Stderr); w := os.Stdout; cli.Run(os.Stdout); ` +
		`x{Stderr: os.Stderr}; os.Stderr.Fd(); fmt.Println() }`
	if file, err := parser.ParseFile(set, "sample.go", sample, 0); err != nil || len(findUnsafe(file)) != 3 {
		t.Fatalf("in the sample %v were found, %v; want 3: Fprintln's os.Stderr, the assigned os.Stdout, and "+
			"fmt.Println",
			findUnsafe(file), err)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		pkg, _ := filepath.Rel(root, filepath.Dir(path))
		if err == nil && d.IsDir() && d.Name() == "testdata" { // programs of tests
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			pkg == "internal/cli" || strings.HasPrefix(pkg, "internal/testenv") {
			return err
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, n := range findUnsafe(file) {
			t.Errorf("%s: %s is used directly, want it by way of cli.Safe", set.Position(n.Pos()), selectorName(n))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
