package invoker

// This file tests finding the user and acting on the user's behalf.

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tensorcast/internal/testenv"
)

// nobody is an account that every Linux has.
const nobody = 65534

func find(t *testing.T) *User {
	t.Helper()
	testenv.NeedRoot(t)
	u, err := Find([]string{"SUDO_UID=65534", "SUDO_GID=12345", "SUDO_USER=nobody"})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestFind(t *testing.T) {
	u := find(t)
	if u.UID != nobody || u.GID != 12345 || u.Name != "nobody" || u.Home == "" {
		t.Errorf("found %+v, want nobody with group 12345", u)
	}
	if !slices.Contains(u.Groups, 12345) || !slices.Contains(u.Groups, nobody) {
		t.Errorf("groups %v: want the account's and SUDO_GID", u.Groups)
	}
	for name, tc := range map[string]struct {
		environ []string
		reason  string // part of the error; if empty, nobody is found and there is no error
	}{
		"no sudo":         {nil, ""},
		"root used sudo":  {[]string{"SUDO_UID=0", "SUDO_GID=0"}, ""},
		"no number":       {[]string{"SUDO_UID=me"}, "SUDO_UID"},
		"no such account": {[]string{"SUDO_UID=4000000001"}, "4000000001"},
		"no group number": {[]string{"SUDO_UID=65534", "SUDO_GID=us"}, "SUDO_GID"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := Find(tc.environ)
			if u != nil || (err != nil) != (tc.reason != "") ||
				err != nil && !strings.Contains(err.Error(), tc.reason) {
				t.Errorf("found %+v, error %v; want nobody, %q", u, err, tc.reason)
			}
		})
	}
}

func TestShell(t *testing.T) {
	const passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000:Me,,,:/home/me:/bin/zsh\n"
	for uid, want := range map[string]string{"0": "/bin/bash", "1000": "/bin/zsh", "100": ""} {
		if got := findShell(strings.NewReader(passwd), uid); got != want {
			t.Errorf("shell of %s is %q, want %q", uid, got, want)
		}
	}
}

func TestEnv(t *testing.T) {
	own := []string{
		"PATH=/secure", "HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/bash", "MAIL=/var/mail/root",
		"TERM=xterm", "SUDO_UID=1000", "SUDO_COMMAND=tracer", "LLAMA_ARG_THREADS=2", "=odd",
	}
	u := &User{Name: "me", Home: "/home/me", Shell: "/bin/zsh", environ: []string{
		"PATH=/home/me/bin:/bin", "HOME=/elsewhere", "MAIL=/var/mail/me", "TERM=dumb",
		"LD_LIBRARY_PATH=/home/me/lib", "LLAMA_ARG_THREADS=9", "SUDO_ASKPASS=x", "odd",
	}}
	got := u.Env(own)
	slices.Sort(got)
	want := []string{
		"=odd", "HOME=/home/me", "LD_LIBRARY_PATH=/home/me/lib", "LLAMA_ARG_THREADS=2", "LOGNAME=me",
		"MAIL=/var/mail/me", "PATH=/home/me/bin:/bin", "SHELL=/bin/zsh", "TERM=xterm", "USER=me",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("environment\n%q, want\n%q", got, want)
	}

	u.environ = nil
	if path, _ := lookup(u.Env(own), "PATH"); path != "/secure" {
		t.Errorf("without sudo's process PATH = %q, want /secure", path)
	}
	if got := (*User)(nil).Env(own); !reflect.DeepEqual(got, own) {
		t.Errorf("without a user the environment is %q, want it unchanged", got)
	}
}

func TestLookPath(t *testing.T) {
	u := find(t)
	dir := testenv.PublicDir(t)
	write := func(name string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first := write("a/everyone", 0o755)
	write("b/everyone", 0o755)
	write("a/roots", 0o700) // the user may not run it, so the search goes on
	second := write("b/roots", 0o755)
	write("a/data", 0o644)
	if err := os.Mkdir(filepath.Join(dir, "a", "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + dir + "/a:" + dir + "/b"}
	for name, want := range map[string]string{"everyone": first, "roots": second, "./x/y": "./x/y"} {
		if got, err := u.LookPath(name, env); got != want || err != nil {
			t.Errorf("%s is %q (%v), want %q", name, got, err, want)
		}
	}
	if _, err := u.LookPath("data", env); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a file that is not executable: error %v, want %v", err, os.ErrPermission)
	}
	for _, name := range []string{"missing", "directory"} {
		if _, err := u.LookPath(name, env); err == nil || !strings.Contains(err.Error(), "no such command") {
			t.Errorf("%s: error %v, want no such command", name, err)
		}
	}
}

func TestDoWritesAsTheUser(t *testing.T) {
	u := find(t)
	dir := testenv.PublicDir(t)
	mine := filepath.Join(dir, "mine")
	if err := os.Mkdir(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(mine, nobody, -1); err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(dir, "roots")
	if err := os.WriteFile(roots, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	planted := filepath.Join(mine, "planted")
	if err := os.Symlink(roots, planted); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(mine, "made")
	err := u.Do(func() error {
		if err := os.WriteFile(filepath.Join(dir, "stray"), nil, 0o644); !errors.Is(err, os.ErrPermission) {
			t.Errorf("creating a file in a directory of root: error %v, want %v", err, os.ErrPermission)
		}
		if err := os.WriteFile(planted, nil, 0o644); !errors.Is(err, os.ErrPermission) {
			t.Errorf("writing through a planted link: error %v, want %v", err, os.ErrPermission)
		}
		if _, err := os.ReadFile(roots); err != nil {
			t.Errorf("reading a file of root: error %v, want none", err)
		}
		return os.WriteFile(made, nil, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(made)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != nobody || st.Gid != 12345 {
		t.Errorf("the file belongs to %d:%d, want %d:12345", st.Uid, st.Gid, nobody)
	}
	if data, err := os.ReadFile(roots); err != nil || string(data) != "secret" {
		t.Errorf("root's file has %q (%v), want secret", data, err)
	}

	// Other threads, also later ones, are root as before.
	for range 20 {
		stray := filepath.Join(dir, "later")
		if err := os.WriteFile(stray, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(stray); err != nil {
			t.Fatal(err)
		}
	}
	if err := (*User)(nil).Do(func() error { return os.ErrExist }); err != os.ErrExist {
		t.Errorf("Do without a user: error %v, want that of the function", err)
	}
}

// helper is an environment variable. If it is set, the test binary prints the PATH of sudo's
// environment instead of running tests.
const helper = "INVOKER_TEST_HELPER"

// stranger is a user to whom no process of the test belongs.
func stranger() uint32 { return uint32(os.Geteuid()) + 1 }

func TestMain(m *testing.M) {
	if os.Getenv(helper) != "" {
		path, _ := lookup(sudoEnviron(stranger()), "PATH")
		os.Stdout.WriteString(path)
		return
	}
	os.Exit(m.Run())
}

// sudo's own environment is found even with shells and wrappers in between. The environment of a
// process that is neither sudo nor belongs to the user is not used.
func TestSudoEnviron(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	// Only two things matter: a process's name, and that it has no variable of sudo. So a shell
	// named sudo will do.
	sudo := filepath.Join(t.TempDir(), "sudo")
	if err := os.Symlink(sh, sudo); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ program, script, want string }{
		"direct":      {sudo, `SUDO_UID=65534 PATH=/secure "$0"; exit`, "/users/bin:/bin"},
		"through sh":  {sudo, `SUDO_UID=65534 PATH=/secure:/bin sh -c '"$0"; exit' "$0"; exit`, "/users/bin:/bin"},
		"not by sudo": {sh, `SUDO_UID=65534 PATH=/secure "$0"; exit`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(tc.program, "-c", tc.script, exe)
			cmd.Env = []string{"PATH=/users/bin:/bin", helper + "=1"}
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if string(out) != tc.want {
				t.Errorf("PATH %q, want %q", out, tc.want)
			}
		})
	}
}
