package proc

// This file tests the parsers of /proc.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tensorcast/internal/testenv"
)

const mapsText = `55d0c6a00000-55d0c6a02000 r-xp 00001000 08:01 1234                       /usr/bin/cat
55d0c6a02000-55d0c6a03000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 rw-p 00000000 00:00 0 
7f0000001000-7f0000003000 r--s 1c0001000 fe:100 18446744073709551615      /models/two  blanks\012and a line (deleted)
7f0000003000-7f0000004000 rw-p 00000000 00:0f 77                         anon_inode:[perf_event]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`

func TestReadMappings(t *testing.T) {
	got, err := readMappings(strings.NewReader(mapsText))
	want := []Mapping{
		{
			Path: "/usr/bin/cat", Start: 0x55d0c6a00000, End: 0x55d0c6a02000, Offset: 0x1000, Executable: true,
			File: FileID{8<<20 | 1, 1234},
		},
		{
			Path:  "/models/two  blanks\nand a line (deleted)",
			Start: 0x7f0000001000, End: 0x7f0000003000, Offset: 0x1c0001000,
			File: FileID{0xfe<<20 | 0x100, 1<<64 - 1},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, line := range []string{
		"", "x", "1-2 r-xp 0 08:01", "2-1 r-xp 0 08:01 5 /a", "1-2 r-x 0 08:01 5 /a", "1-2 r-xp -1 08:01 5 /a",
		"1-2 r-xp 0 0801 5 /a", "1-2 r-xp 0 08:100000 5 /a", "1-2 r-xp 0 08:01 g /a",
	} {
		if got, err := readMappings(strings.NewReader(line + "\n")); !errors.Is(err, errMaps) {
			t.Errorf("%q: %+v, error %v; want %v", line, got, err, errMaps)
		}
	}
	// A process can make the text very long.
	line := fmt.Sprintf("1000-2000 r--p 00000000 08:01 1 /%s\n", strings.Repeat("x", 4000))
	if _, err := readMappings(&repeated{text: line}); err == nil || !strings.Contains(err.Error(), "more than 64 MiB") {
		t.Errorf("an endless memory map: error %v, want one that has the limit", err)
	}
}

// repeated is a text that is repeated without end.
type repeated struct {
	text string
	at   int
}

func (r *repeated) Read(b []byte) (n int, err error) {
	n = copy(b, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

// In the kernel's own text of a mapping, the file's name is found whatever characters are in it.
func TestMappings(t *testing.T) {
	names := []string{"plain", "two  blanks", " at the edges ", "a line\nbreak", "tab\tand\u00a0more", "half \xe2\x82"}
	for _, name := range names {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := unix.Mmap(int(f.Fd()), 4096, 4096, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		all, err := Mappings(os.Getpid())
		i := slices.IndexFunc(all, func(m Mapping) bool { return m.Path == path })
		if err != nil || i < 0 {
			t.Errorf("%q is not among %+v, %v", path, all, err)
		} else if m := all[i]; m.Offset != 4096 || m.End-m.Start != 4096 || m.Executable ||
			m.Locate(os.Getpid()).Path != path {
			t.Errorf("%+v, found at %+v; want 4096 bytes at 4096 of %q", m, m.Locate(os.Getpid()), path)
		}
		if err := errors.Join(unix.Munmap(b), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Mappings(1 << 30); !errors.Is(err, ErrNoProcess) {
		t.Errorf("no process: error %v, want %v", err, ErrNoProcess)
	}
}

// The command line and the environment of a process are read up to a limit.
func TestCommandLineAndEnviron(t *testing.T) {
	args := []string{"cat", "-"}
	for range 15 {
		args = append(args, strings.Repeat("x", 100<<10))
	}
	for _, long := range []bool{false, true} {
		cmd := &exec.Cmd{Path: "/bin/cat", Args: args[:2], Env: []string{"A=1", "B= \n=2"}}
		if long {
			cmd.Args = args
		}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The new program's descriptors are closed, which Start waits for, a moment before its
		// arguments are in place.
		testenv.WaitFor(t, "the program to have its arguments", func() bool {
			env, err := Environ(cmd.Process.Pid)
			return err != nil || len(env) > 0
		})
		line := CommandLine(cmd.Process.Pid)
		env, err := Environ(cmd.Process.Pid)
		if err != nil || !slices.Equal(env, cmd.Env) {
			t.Errorf("environment %q, %v; want %q", env, err, cmd.Env)
		}
		got := len(strings.Join(line, " "))
		if !slices.Equal(line[:2], args[:2]) || got > maxText || long && got < maxText/2 || !long && len(line) != 2 {
			t.Errorf("%d arguments of %d bytes in all; want %q first, and at most %d bytes",
				len(line), got, args[:2], maxText)
		}
		stdin.Close()
		_ = cmd.Wait() // it finds no such files
		if env, err := Environ(cmd.Process.Pid); !errors.Is(err, ErrNoProcess) {
			t.Errorf("of a process that has ended: %q, error %v; want %v", env, err, ErrNoProcess)
		}
	}
}

// A memory map is parsed or refused. Each parsed mapping has a file and an address range.
func FuzzMappings(f *testing.F) {
	f.Add([]byte(mapsText))
	for line := range strings.Lines(mapsText) {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := readMappings(bytes.NewReader(b))
		if err != nil {
			return
		}
		if len(all) > bytes.Count(b, []byte{'\n'})+1 {
			t.Fatalf("%d mappings, more than lines", len(all))
		}
		for _, m := range all {
			if m.Start >= m.End || m.File.Ino == 0 || m.Path[0] != '/' || m.File.Dev >= 1<<32 {
				t.Fatalf("%+v", m)
			}
		}
	})
}

// Splitting and joining at zero bytes gives the same text.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{"", "\x00", "a\x00b\x00", "a\x00\x00b", "title set by the process"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		words := splitAtZeros(b)
		want := strings.TrimSuffix(string(b), "\x00")
		if got := strings.Join(words, "\x00"); got != want || (words == nil) != (len(b) == 0) {
			t.Fatalf("splitAtZeros(%q) = %q", b, words)
		}
	})
}
