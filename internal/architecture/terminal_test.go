package architecture_test

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

// selected is "os.Stdout" for that expression, "" for others.
func selected(n ast.Node) string {
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

// standard are the streams that may be terminals; edge are the functions that keep text from acting on one, or write none.
var (
	standard = []string{"os.Stdout", "os.Stderr"}
	edge     = []string{"cli.Run", "cli.Safe", "cli.IsTerminal", "status.NewLine"}
	printers = []string{"fmt.Print", "fmt.Println", "fmt.Printf", "log.Print", "log.Println", "log.Printf", "slog.Default", "slog.Info", "slog.Warn", "slog.Error"}
)

// bypasses lists what a file prints without passing the terminal's edge.
func bypasses(file *ast.File) (found []ast.Node) {
	allowed := map[ast.Node]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if slices.Contains(edge, selected(n.Fun)) {
				for _, arg := range n.Args {
					allowed[arg] = true
				}
			}
		case *ast.KeyValueExpr: // the streams of a command that is started: what it prints is its own
			if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Stdout" || key.Name == "Stderr") {
				allowed[n.Value] = true
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "Fd" {
				allowed[n.X] = true
			}
		}
		if name := selected(n); !allowed[n] && slices.Contains(standard, name) || slices.Contains(printers, name) {
			found = append(found, n)
		}
		return true
	})
	return found
}

// All that commands print passes internal/cli, which makes visible what would act on a terminal.
func TestNothingBypassesTheTerminalsEdge(t *testing.T) {
	set := token.NewFileSet()
	sample := `package p; func f() { fmt.Fprintln(os.Stderr); w := os.Stdout; cli.Run(os.Stdout); x{Stderr: os.Stderr}; os.Stderr.Fd(); fmt.Println() }`
	if file, err := parser.ParseFile(set, "sample.go", sample, 0); err != nil || len(bypasses(file)) != 3 {
		t.Fatalf("the sample: %v, %v", bypasses(file), err)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		pkg, _ := filepath.Rel(root, filepath.Dir(path))
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || pkg == "internal/cli" || strings.HasPrefix(pkg, "internal/testenv") {
			return err
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, n := range bypasses(file) {
			t.Errorf("%s: %s is not written to by way of cli.Safe", set.Position(n.Pos()), selected(n))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
