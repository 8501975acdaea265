package ebpf

// These tests compare the numbers that user space shares with the programs: in Go, in the C source,
// and in the committed objects.

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"tensorcast/event"
	"tensorcast/ggml"
)

// enums holds the values of enums: by the C name of the enum, then by the C name of the value.
type enums map[string]map[string]uint64

// The numbers that user space uses are those of the C source and those that the committed programs
// were compiled with. If this fails, run `go generate ./ebpf`.
func TestConstantsAreThePrograms(t *testing.T) {
	var source strings.Builder
	for _, file := range []string{"bpf/common.h", "bpf/trace.bpf.c", "bpf/system.bpf.c"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range regexp.MustCompile(`(?m)^enum \w+ \{[^}]*\};`).FindAllString(string(text), -1) {
			source.WriteString(e + "\n")
		}
	}
	objects, err := filepath.Glob("*_bpfel.o")
	if err != nil || len(objects) != 4 {
		t.Fatalf("objects %q, %v", objects, err)
	}
	for _, object := range objects {
		prefix, _, _ := strings.Cut(object, "_")
		inGo := goEnums(t, strings.TrimSuffix(object, ".o")+".go")
		compiled := objectEnums(t, object)
		inC := sourceEnums(t, source.String(), compiled)
		if len(inGo) == 0 {
			t.Errorf("%s: no enums in Go", object)
		}
		for name, values := range inGo {
			found := false
			for c := range compiled {
				if name == prefix+camel(c) {
					found = true
					if !maps.Equal(values, compiled[c]) || !maps.Equal(values, inC[c]) {
						t.Errorf("%s: enum %s: Go has %v, the programs %v, their source %v", object, c, values,
							compiled[c], inC[c])
					}
				}
			}
			if !found {
				t.Errorf("%s has no %s", object, name)
			}
		}
	}
}

// camel is what bpf2go makes of a name.
func camel(name string) (to string) {
	for word := range strings.SplitSeq(name, "_") {
		to += strings.ToUpper(word[:1]) + word[1:]
	}
	return to
}

// goEnums reads the typed constants of a generated file. Their names begin with that of their type.
func goEnums(t *testing.T, path string) enums {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := enums{}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			of, ok := spec.Type.(*ast.Ident)
			if !ok {
				continue
			}
			value, err := strconv.ParseUint(spec.Values[0].(*ast.BasicLit).Value, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			if found[of.Name] == nil {
				found[of.Name] = map[string]uint64{}
			}
			found[of.Name][strings.TrimPrefix(spec.Names[0].Name, of.Name)] = value
		}
	}
	return found
}

// objectEnums reads the enums from the type information of an object.
func objectEnums(t *testing.T, path string) enums {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		t.Fatal(err)
	}
	found := enums{}
	for typ, err := range spec.Types.All() {
		if err != nil {
			t.Fatal(err)
		}
		e, ok := typ.(*btf.Enum)
		if !ok || e.Name == "" {
			continue
		}
		found[e.Name] = map[string]uint64{}
		for _, v := range e.Values {
			found[e.Name][v.Name] = v.Value
		}
	}
	return found
}

// sourceEnums lets a C compiler say which values the definitions give. want names the values.
func sourceEnums(t *testing.T, definitions string, want enums) enums {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip(err)
	}
	program := "#include <stdio.h>\n" + definitions + "int main(void) {\n"
	for name, values := range want {
		for value := range values {
			program += fmt.Sprintf("printf(%q, (unsigned)%s);\n", name+" "+value+" %u\n", value)
		}
	}
	path := filepath.Join(t.TempDir(), "enums")
	cmd := exec.Command(gcc, "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(program + "}\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(path).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := enums{}
	for line := range strings.Lines(string(out)) {
		var name, value string
		var n uint64
		if _, err := fmt.Sscan(line, &name, &value, &n); err != nil {
			t.Fatal(err)
		}
		if found[name] == nil {
			found[name] = map[string]uint64{}
		}
		found[name][value] = n
	}
	return found
}

// The programs can hold ggml's table of gathering ops, and each cause has a meaning of its own.
func TestTables(t *testing.T) {
	for _, g := range ggml.Gathers() {
		if g.Source < 0 || g.Source >= int(traceLimitMAX_NODE_SRC) || g.IDs < 0 ||
			g.IDs >= int(traceLimitSIGNED_SRC) || g.Dim < 1 || g.Dim > 3 {
			t.Errorf("%+v does not fit the programs' limits", g)
		}
	}
	if n := len(ggml.Gathers()); n > int(traceLimitMAX_GATHERS) {
		t.Errorf("%d gathering ops, want at most %d, which the programs take", n, traceLimitMAX_GATHERS)
	}
	config := gathersOf([]string{"NONE", "ADD_ID", "GET_ROWS"})
	if config[0] != (traceGather{Op: 2, Ids: 1}) || config[1].Op != uint32(traceLimitNO_OP) ||
		config[2] != (traceGather{Op: 1, Source: 1, Ids: 2, Experts: 1}) ||
		config[len(ggml.Gathers())].Op != uint32(traceLimitNO_OP) {
		t.Errorf("the programs' table is %+v", config)
	}
	seen := map[event.Cause]bool{}
	for c := systemCauseCAUSE_FAULT; c <= systemCauseCAUSE_OTHER; c++ {
		cause, err := causeOf(c)
		if err != nil || seen[cause] {
			t.Errorf("cause %d: %v, %v, want a cause of its own", c, cause, err)
		}
		seen[cause] = true
	}
	if _, err := causeOf(systemCauseCAUSE_OTHER + 1); err == nil {
		t.Error("an unknown cause gives no error")
	}
}
