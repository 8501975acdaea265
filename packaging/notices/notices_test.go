package main

// This file tests that NOTICES is what the commands need, and that a licence nobody has read is refused.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// The file that is shipped is what the commands of now need.
func TestNotices(t *testing.T) {
	want, err := write(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, "NOTICES"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("NOTICES is not what the commands contain: run go generate ./packaging/notices, and look at what changes")
	}
	table, _, _ := strings.Cut(string(want), strings.Repeat("=", 80))
	for _, has := range []string{"Go's standard library", "github.com/cilium/ebpf ", "OFL-1.1", "MIT"} {
		if !strings.Contains(table, has) {
			t.Errorf("the table does not name %s", has)
		}
	}
	if strings.Contains(table, "\ntensorcast") || strings.Contains(table, "honnef.co") {
		t.Error("the table names what no command contains")
	}
	if n := strings.Count(string(want), "Copyright (c) 2017 John C. Griffin"); n != 1 {
		t.Errorf("a text that is in a README is there %d times, want 1", n)
	}
}

// A component's texts are those of its top directory and of the packages that are linked. A text that is not known, or
// whose licence is not one of those allowed, and none at all, are errors that name the component.
func TestRead(t *testing.T) {
	const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction, including without
limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software,
and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.`
	const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General
Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any
later version. This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even
the implied warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more
details. You should have received a copy of the GNU General Public License along with this program. If not, see
<https://www.gnu.org/licenses/>.`
	for _, tt := range []struct {
		name  string
		files map[string]string
		texts int
		fails string
	}{
		{"an MIT licence and a notice", map[string]string{"LICENSE": mit, "NOTICE": "of others"}, 2, ""},
		{"a package's own", map[string]string{
			"LICENSE": mit, "linked/COPYING.txt": mit + " too", "other/LICENSE": "?",
		}, 2, ""},
		{"none", map[string]string{"main.go": "package main"}, 0, "has no licence"},
		{"only a notice", map[string]string{"NOTICE": "of others"}, 0, "has no licence"},
		{"an unknown one", map[string]string{"LICENSE": "Pay me."}, 0, "is not known"},
		{"a copyleft one", map[string]string{"LICENSE": gpl}, 0, "GPL-3.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := component{name: "example.org/it", dir: t.TempDir(), below: map[string]bool{"": true, "linked": true}}
			for name, text := range tt.files {
				path := filepath.Join(c.dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.MkdirAll(filepath.Join(c.dir, "linked"), 0o755); err != nil {
				t.Fatal(err)
			}
			err := c.read()
			switch {
			case tt.fails == "" && (err != nil || len(c.texts) != tt.texts):
				t.Errorf("%d texts, %v; want %d", len(c.texts), err, tt.texts)
			case tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails) ||
				!strings.Contains(err.Error(), c.name)):
				t.Errorf("error %v, want one with %q that names the component", err, tt.fails)
			}
		})
	}
}
