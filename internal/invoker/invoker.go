// Package invoker is for programs that were started with sudo. It finds out who used sudo and which
// environment sudo replaced, and acts with that user's permissions. cmd/tracer runs its target as
// that user and writes files for them.
//
// All methods may be called on a nil *User, which means that there is nobody to act for. Then they
// change nothing.
package invoker

// This file finds the user, and acts on the user's behalf.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the user who ran sudo.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary groups, as after a login
	Name     string
	Home     string
	Shell    string   // empty if unknown
	environ  []string // environment that sudo was started with; nil if sudo was not found
}

// UID is the id of the user that Find would find. ok is false if there is none, or if sudo's
// variables are invalid, which Find reports.
func UID(environ []string) (uid uint32, ok bool) {
	text, ok := lookup(environ, "SUDO_UID")
	n, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil || n == 0 || os.Geteuid() != 0 {
		return 0, false
	}
	return uint32(n), true
}

// Find returns the user who is named by sudo's variables in a process's environment. It returns nil
// if sudo was not used, or was used by root, or if this process is not root and so cannot act for
// others.
func Find(environ []string) (*User, error) {
	text, ok := lookup(environ, "SUDO_UID")
	if !ok || os.Geteuid() != 0 {
		return nil, nil
	}
	uid, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("SUDO_UID is %q, which is not a user id", text)
	}
	if uid == 0 {
		return nil, nil
	}
	account, err := user.LookupId(text)
	if err != nil {
		return nil, fmt.Errorf("who used sudo (SUDO_UID is %s): %w", text, err)
	}
	// sudo records the user's current group, which newgrp may have changed.
	primary, ok := lookup(environ, "SUDO_GID")
	if !ok {
		primary = account.Gid
	}
	gid, err := strconv.ParseUint(primary, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("SUDO_GID is %q, which is not a group id", primary)
	}
	u := &User{
		UID: uint32(uid), GID: uint32(gid), Groups: []uint32{uint32(gid)},
		Name: account.Username, Home: account.HomeDir,
	}
	ids, err := account.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("the groups of %s: %w", u.Name, err)
	}
	for _, id := range ids {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the groups of %s: %w", u.Name, err)
		}
		if !slices.Contains(u.Groups, uint32(n)) {
			u.Groups = append(u.Groups, uint32(n))
		}
	}
	u.environ = sudoEnviron(uint32(uid))
	if passwd, err := os.Open("/etc/passwd"); err == nil {
		u.Shell = findShell(passwd, text)
		passwd.Close()
	}
	if u.Shell == "" { // the account comes from a directory service, not from this file
		u.Shell, _ = lookup(u.environ, "SHELL")
	}
	return u, nil
}

// findShell finds the login shell of a user id in the text of /etc/passwd. Package os/user does not
// provide it.
func findShell(passwd io.Reader, uid string) string {
	lines := bufio.NewScanner(passwd)
	lines.Buffer(nil, 16<<20) // the scan would end at a line that is longer than the buffer
	for lines.Scan() {
		if f := strings.Split(lines.Text(), ":"); len(f) == 7 && f[2] == uid {
			return f[6]
		}
	}
	return ""
}

// Credential has the ids with which processes of the user run.
func (u *User) Credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// Env turns own, the environment that sudo made for root, into one for the user. It has the
// account's HOME, USER, LOGNAME and SHELL, the user's own PATH (sudo's is secure_path), and
// variables that sudo removed, such as LD_LIBRARY_PATH. Other variables of own stay, because they
// may have been set on sudo's command line.
func (u *User) Env(own []string) []string {
	if u == nil {
		return own
	}
	set := map[string]string{"HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name}
	if u.Shell != "" {
		set["SHELL"] = u.Shell
	}
	if path, ok := lookup(u.environ, "PATH"); ok {
		set["PATH"] = path
	}
	var env []string
	have := map[string]bool{}
	add := func(name, value string) {
		if !have[name] {
			have[name] = true
			env = append(env, name+"="+value)
		}
	}
	for _, kv := range own {
		name, value, _ := strings.Cut(kv, "=")
		switch {
		case strings.HasPrefix(name, "SUDO_"), name == "SHELL", name == "MAIL": // set by sudo, or belongs to root
			continue
		}
		if v, ok := set[name]; ok {
			value = v
		}
		add(name, value)
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		add(name, set[name])
	}
	for _, kv := range u.environ {
		if name, value, ok := strings.Cut(kv, "="); ok && !strings.HasPrefix(name, "SUDO_") {
			add(name, value)
		}
	}
	return env
}

// LookPath finds a command as the user's shell would, in the PATH of env.
func (u *User) LookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // execve will report what is wrong with it
	}
	path, _ := lookup(env, "PATH")
	found := ""
	err := u.Do(func() error {
		var refused error
		for _, dir := range filepath.SplitList(path) {
			if dir == "" {
				dir = "."
			}
			candidate := dir + "/" + name // LookPath does not search for a name with a slash
			_, err := exec.LookPath(candidate)
			if err == nil {
				found = candidate
				return nil
			}
			if errors.Is(err, os.ErrPermission) && refused == nil {
				if info, statErr := os.Stat(candidate); statErr == nil && !info.IsDir() {
					refused = fmt.Errorf("start %s: %w", candidate, os.ErrPermission)
				}
			}
		}
		if refused != nil {
			return refused
		}
		return fmt.Errorf("start %s: no such command in PATH (%s)", name, path)
	})
	return found, err
}

// Command returns a command that runs args as the user, with the user's environment, ids and PATH,
// and with this process's streams. The error says that the program was not found.
func (u *User) Command(args []string) (*exec.Cmd, error) {
	env := u.Env(os.Environ())
	path, err := u.LookPath(args[0], env)
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{
		Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Credential: u.Credential()},
	}, nil
}

// Do calls f on a separate thread that creates and opens files as the user. So files that f writes
// belong to the user, and f can write only where the user may write, even through symbolic links
// that somebody planted. Reading is not restricted (f may read models and memory maps of any
// process), and neither are root's other privileges. Goroutines that f starts run as root.
func (u *User) Do(f func() error) error {
	if u == nil {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with this goroutine, so no other goroutine gets its identity.
		runtime.LockOSThread()
		if err := u.assumeIdentity(); err != nil {
			done <- fmt.Errorf("act as %s: %w", u.Name, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// assumeIdentity changes the file system identity of the calling thread. (The functions of
// x/sys/unix affect one thread, as the kernel's do. Those of package syscall would affect all
// threads.)
func (u *User) assumeIdentity() error {
	groups := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = int(g)
	}
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	// setfsuid and setfsgid report no errors. To read back the result, they are called again with
	// an invalid id.
	if err := unix.Setfsgid(int(u.GID)); err != nil {
		return fmt.Errorf("set the group for files: %w", err)
	}
	if err := unix.Setfsuid(int(u.UID)); err != nil {
		return fmt.Errorf("set the user for files: %w", err)
	}
	if gid, err := unix.SetfsgidRetGid(-1); err != nil || gid != int(u.GID) {
		return errors.New("the kernel refused the group for files")
	}
	if uid, err := unix.SetfsuidRetUid(-1); err != nil || uid != int(u.UID) {
		return errors.New("the kernel refused the user for files")
	}
	// The calls above have removed all capabilities for files. Restore the one for reading.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	caps[0].Effective |= caps[0].Permitted & (1 << unix.CAP_DAC_READ_SEARCH)
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}

// lookup returns the value of an environment variable.
func lookup(environ []string, name string) (string, bool) {
	for _, kv := range environ {
		if n, v, ok := strings.Cut(kv, "="); ok && n == name {
			return v, true
		}
	}
	return "", false
}
