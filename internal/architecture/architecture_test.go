// Package architecture_test checks rules for the whole project: which package imports which, as the table in
// ARCHITECTURE.md says, which flags messages name, how commands print, and which errors the documentation explains.
package architecture_test

// This file compares the packages and their imports with the table in ARCHITECTURE.md.

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

// listedPackage is a package as the go command lists it, without its tests.
type listedPackage struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
}

// listPackages lists the packages of this module that have code besides tests. Keys are paths in the module, values
// are the imports from the same module.
func listPackages(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages: %v", err)
	}
	all := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
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

// readTable reads the table of ARCHITECTURE.md: the imports that it lists, by package. A row is
// | `package`, ... | what it owns | what it must not know | imports |.
func readTable(t *testing.T) map[string][]string {
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
			t.Errorf("a row of the table has %d cells, want 4: %s", len(cells), line)
			continue
		}
		for _, name := range quoted.FindAllStringSubmatch(cells[0], -1) {
			if _, twice := arrows[name[1]]; twice {
				t.Errorf("%s is in the table twice, want once", name[1])
			}
			arrows[name[1]] = []string{}
			for _, to := range quoted.FindAllStringSubmatch(cells[3], -1) {
				arrows[name[1]] = append(arrows[name[1]], to[1])
			}
		}
	}
	return arrows
}

func isInternal(pkg string) bool { return strings.HasPrefix(pkg, "internal/") }

func isCommand(pkg string) bool {
	return strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "experiments/cmd/")
}

// Every package has a row in the table, and exactly the imports that its row lists. Some rules hold for all and are
// not in the table. Every package may import internal packages. Internal packages import only each other. Commands
// import what they like. Only parts of a command import packages of that command.
func TestArrows(t *testing.T) {
	have, want := listPackages(t), readTable(t)
	if len(have) < 30 || len(want) < 30 {
		t.Fatalf("%d packages in the code, %d in the table, want at least 30: this test does not find them",
			len(have), len(want))
	}
	for pkg, imports := range have {
		for _, to := range imports {
			if isCommand(to) && !strings.HasPrefix(pkg, to[:strings.LastIndex(to, "/")]) {
				t.Errorf("%s imports %s, want no import of another command's package", pkg, to)
			}
			if isInternal(pkg) && !isInternal(to) {
				t.Errorf("%s imports %s, want internal packages to import only each other", pkg, to)
			}
		}
		arrows, ok := want[pkg]
		switch {
		case !ok && !isInternal(pkg) && !isCommand(pkg):
			t.Errorf("%s has no row in the table of ARCHITECTURE.md", pkg)
		case !ok:
		case isCommand(pkg):
		default:
			for _, to := range imports {
				if !isInternal(to) && !slices.Contains(arrows, to) {
					t.Errorf("%s imports %s, which its row in ARCHITECTURE.md does not list", pkg, to)
				}
			}
			for _, to := range arrows {
				if !slices.Contains(imports, to) {
					t.Errorf("ARCHITECTURE.md says that %s imports %s, but it does not", pkg, to)
				}
			}
		}
	}
	for pkg := range want {
		if _, ok := have[pkg]; !ok {
			t.Errorf("ARCHITECTURE.md has a row for %s, which does not exist", pkg)
		}
	}
}

// prefetchd's memory is charged to its target, so it must stay small. It links no library for table files, no traces,
// and none of fabric's experiments.
func TestPrefetchdLinksLittle(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/prefetchd")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"prefetch") {
		t.Fatalf("prefetchd links %d packages, want prefetch among them: this test does not find them", len(deps))
	}
	for _, dep := range deps {
		if strings.Contains(dep, "apache/arrow") || strings.Contains(dep, "parquet") ||
			dep == module+"trace" || strings.HasPrefix(dep, module+"fabric/lab") {
			t.Errorf("prefetchd links %s, want it not to", dep)
		}
	}
}
