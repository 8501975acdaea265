// Command notices writes the file NOTICES: which software of others the commands contain, under which licences, and
// the texts that these licences want to be shipped. The packages have it beside LICENSE.
//
// What a command contains is what the go command says that it is built of, on each architecture for which there are
// packages. A module's texts are those that lie in its top directory and in the directories of the packages that are
// linked. A text whose licence is not known, or not one of [allowed], is an error: somebody has to read it.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/licensecheck"

	"tensorcast/internal/cli"
	"tensorcast/internal/outfile"
)

//go:generate go run . ../../NOTICES

const standardLibrary = "Go's standard library"

// architectures are those for which there are packages.
var architectures = []string{"amd64", "arm64"}

// allowed are the licences, as SPDX names them, of what may be in a program under Apache-2.0 if the text is shipped.
// None of them wants the source of the rest.
var allowed = []string{
	"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "FTL", "ISC", "MIT", "OFL-1.1", "Zlib",
}

// elsewhere has the texts of those that do not keep them where others do, below their directory. They are read instead
// of what lies there.
var elsewhere = map[string][]string{
	// A text in src/crypto/internal/boring is of a library that is not linked.
	standardLibrary: {"LICENSE", "PATENTS"},

	"github.com/JohnCGriffin/overflow": {"README.md"},                   // its section "MIT License"
	"github.com/golang/freetype":       {"LICENSE", "licenses/ftl.txt"}, // FTL or GPL, as one chooses: it is FTL here
}

// declared has the licences of texts that point to another text, or that tell of more than what is linked, by module
// and file.
var declared = map[[2]string][]string{
	// Most of the text is about what Arrow's libraries in C++ and Python contain.
	{"github.com/apache/arrow/go/v17", "LICENSE.txt"}:  {"Apache-2.0"},
	{"github.com/golang/freetype", "LICENSE"}:          {"FTL"},
	{"github.com/golang/freetype", "licenses/ftl.txt"}: {"FTL"},
}

// A licence has to be classified; what stands beside it is shipped as it is.
var (
	licenceName = regexp.MustCompile(`(?i)^((un)?licen[sc]e|copying|ofl)([-._].*)?$`)
	besideName  = regexp.MustCompile(`(?i)^(notice|patents|copyright)([-._].*)?$`)
)

// component is a module, or Go's standard library.
type component struct {
	name, version, dir string
	below              map[string]bool // directories with packages that are linked, relative to dir
	licences           []string
	texts              []string
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(cli.Safe(os.Stderr), "usage: notices FILE")
		os.Exit(2)
	}
	text, err := write(context.Background(), filepath.Join("..", ".."))
	if err == nil {
		err = outfile.Write(os.Args[1], func(w io.Writer) error {
			_, err := w.Write(text)
			return err
		})
	}
	if err != nil {
		fmt.Fprintln(cli.Safe(os.Stderr), "notices:", err)
		os.Exit(1)
	}
}

// write returns the notices of the commands of the module whose directory is root.
func write(ctx context.Context, root string) ([]byte, error) {
	found := map[string]*component{}
	for _, a := range architectures {
		if err := listLinked(ctx, root, a, found); err != nil {
			return nil, err
		}
	}
	all := slices.SortedFunc(maps.Values(found), func(a, b *component) int { return cmp.Compare(a.name, b.name) })
	var failed error
	for _, c := range all {
		failed = errors.Join(failed, c.read())
	}
	if failed != nil {
		return nil, failed
	}
	return format(all), nil
}

// listLinked adds the components of the commands on one architecture.
func listLinked(ctx context.Context, root, architecture string, found map[string]*component) error {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,Standard,Root,Module", "./cmd/...")
	cmd.Dir, cmd.Stderr = root, cli.Safe(os.Stderr)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list what the commands are built of: %w", err)
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			Dir, Root string
			Standard  bool
			Module    *struct {
				Path, Version, Dir string
				Main               bool
			}
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what the commands are built of: %w", err)
		}
		// Every checkout may have another patch of Go, whose text is the same: its version is left out.
		c := component{name: standardLibrary, dir: p.Root}
		if !p.Standard {
			if p.Module == nil {
				return fmt.Errorf("%s belongs to no module", p.Dir)
			}
			if p.Module.Main {
				continue
			}
			c = component{name: p.Module.Path, version: p.Module.Version, dir: p.Module.Dir}
		}
		if found[c.name] == nil {
			c.below = map[string]bool{"": true}
			found[c.name] = &c
		}
		inside, err := filepath.Rel(c.dir, p.Dir)
		if err != nil {
			return err
		}
		for ; inside != "."; inside = filepath.Dir(inside) {
			found[c.name].below[inside] = true
		}
	}
}

// read reads a component's texts, and classifies them.
func (c *component) read() error {
	files := elsewhere[c.name]
	if files == nil {
		for _, dir := range slices.Sorted(maps.Keys(c.below)) {
			entries, err := os.ReadDir(filepath.Join(c.dir, dir))
			if err != nil {
				return fmt.Errorf("look for the licence of %s: %w", c.name, err)
			}
			for _, e := range entries {
				if e.Type().IsRegular() && (licenceName.MatchString(e.Name()) || besideName.MatchString(e.Name())) {
					files = append(files, filepath.Join(dir, e.Name()))
				}
			}
		}
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(c.dir, name))
		if err != nil {
			return fmt.Errorf("read the licence of %s: %w", c.name, err)
		}
		c.texts = append(c.texts, tidy(string(text)))
		if besideName.MatchString(filepath.Base(name)) {
			continue
		}
		licences := declared[[2]string{c.name, name}]
		if licences == nil {
			for _, m := range licensecheck.Scan(text).Match {
				licences = append(licences, m.ID)
			}
		}
		if licences == nil {
			return fmt.Errorf("%s: the licence in %s is not known: read it, and say in packaging/notices what it is",
				c.name, name)
		}
		c.licences = append(c.licences, licences...)
	}
	slices.Sort(c.licences)
	c.licences = slices.Compact(c.licences)
	if len(c.licences) == 0 {
		return fmt.Errorf("%s has no licence in its directory: find the text, and say in packaging/notices where it is",
			c.name)
	}
	if i := slices.IndexFunc(c.licences, func(l string) bool { return !slices.Contains(allowed, l) }); i >= 0 {
		return fmt.Errorf("%s is under %s, which packaging/notices does not have among the licences that may be shipped",
			c.name, c.licences[i])
	}
	return nil
}

// tidy removes spaces at the ends of lines and empty lines at both ends, so that equal texts are equal.
func tidy(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t\f")
	}
	return strings.Trim(strings.Join(lines, "\n"), "\n")
}

// format returns a table of the components, and each text once, with whose it is.
func format(all []*component) []byte {
	var out bytes.Buffer
	fmt.Fprint(&out, "tensorcast is under the Apache License 2.0, which is in the file LICENSE. Its commands contain\n"+
		"software of others. This file says what that is and under which licences, by their names at\n"+
		"https://spdx.org/licenses. The texts follow. The file is made by go generate ./packaging/notices.\n\n")
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	owners := map[string][]string{}
	var texts []string
	for _, c := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.name, cmp.Or(c.version, "-"), strings.Join(c.licences, ", "))
		for _, t := range c.texts {
			if owners[t] == nil {
				texts = append(texts, t)
			}
			if !slices.Contains(owners[t], c.name) {
				owners[t] = append(owners[t], c.name)
			}
		}
	}
	table.Flush()
	for _, t := range texts {
		fmt.Fprintf(&out, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(owners[t], "\n"), t)
	}
	return out.Bytes()
}
