// Package architecture_test checks the code against ARCHITECTURE.md: the table there lists the packages and which imports they may have.
package architecture_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module = "tensorcast/"
	root   = "../.."
)

// listed is a package as the go command sees it, without its tests.
type listed struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
}

// packages lists those of this module that have code besides tests, by their path in it, with what they import of it.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	all := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) == 0 {
			continue
		}
		imports := []string{}
		for _, i := range p.Imports {
			if rest, ok := strings.CutPrefix(i, module); ok {
				imports = append(imports, rest)
			}
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = imports
	}
}

var quoted = regexp.MustCompile("`([^`]+)`")

// drawn reads the table: rows of | `package`, ... | what it owns | what it must not know | imports |.
func drawn(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	arrows := map[string][]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "|"), "|"), "|")
		if len(cells) != 4 {
			t.Errorf("a row of %d cells, want 4: %s", len(cells), line)
			continue
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[0], -1) {
			if _, twice := arrows[name[1]]; twice {
				t.Errorf("%s is in the table twice", name[1])
			}
			arrows[name[1]] = []string{}
			for _, to := range quoted.FindAllStringSubmatch(cells[3], -1) {
				arrows[name[1]] = append(arrows[name[1]], to[1])
			}
		}
	}
	return arrows
}

func internal(pkg string) bool { return strings.HasPrefix(pkg, "internal/") }
func command(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "experiments/cmd/")
}

// Every package has a row, and exactly the arrows that its row draws. What is true of all is not drawn: anybody may import internal packages, these import
// nothing but each other, commands import what they like, and nobody imports a command but its own parts.
func TestArrows(t *testing.T) {
	have, want := packages(t), drawn(t)
	if len(have) < 30 || len(want) < 30 {
		t.Fatalf("%d packages, %d in the table: this test reads them wrongly", len(have), len(want))
	}
	for pkg, imports := range have {
		for _, to := range imports {
			if command(to) && !strings.HasPrefix(pkg, to[:strings.LastIndex(to, "/")]) {
				t.Errorf("%s imports %s, which belongs to a command", pkg, to)
			}
			if internal(pkg) && !internal(to) {
				t.Errorf("%s imports %s: internal packages know nothing of the domain", pkg, to)
			}
		}
		arrows, ok := want[pkg]
		switch {
		case !ok && !internal(pkg) && !command(pkg):
			t.Errorf("%s has no row in the table of ARCHITECTURE.md", pkg)
		case !ok:
		case command(pkg):
		default:
			for _, to := range imports {
				if !internal(to) && !slices.Contains(arrows, to) {
					t.Errorf("%s imports %s, an arrow that ARCHITECTURE.md does not draw", pkg, to)
				}
			}
			for _, to := range arrows {
				if !slices.Contains(imports, to) {
					t.Errorf("ARCHITECTURE.md draws an arrow from %s to %s, which is not there", pkg, to)
				}
			}
		}
	}
	for pkg := range want {
		if _, ok := have[pkg]; !ok {
			t.Errorf("ARCHITECTURE.md tells of %s, which is not there", pkg)
		}
	}
}

// prefetchd's memory is charged to its target, so it must stay small: it links no table library, and none of fabric's experiments.
func TestPrefetchdLinksLittle(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/prefetchd")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"prefetch") {
		t.Fatalf("%d packages, and prefetch is none of them", len(deps))
	}
	for _, dep := range deps {
		if strings.Contains(dep, "apache/arrow") || strings.Contains(dep, "parquet") || dep == module+"trace" || strings.HasPrefix(dep, module+"fabric/lab") {
			t.Errorf("prefetchd links %s", dep)
		}
	}
}
