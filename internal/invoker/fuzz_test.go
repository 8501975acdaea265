package invoker

// This file fuzzes the parser of /etc/passwd and the environment for the user.

import (
	"strings"
	"testing"
)

// The shell of a user is in the first complete line with the user's id.
func FuzzShell(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\nbroken\nme:x:1000:1000:Me,,,:/home/me:/bin/zsh\n", "1000")
	f.Add("a:x:1:1:::\nb:x:1:1:::/bin/sh", "1")
	f.Add("::::::\n", "")
	f.Add("long:x:1:1:"+strings.Repeat("x", 70_000)+"::/bin/sh\nme:x:2:2:::/bin/zsh\n", "2")
	f.Fuzz(func(t *testing.T, passwd, uid string) {
		want := ""
		for _, line := range strings.Split(passwd, "\n") {
			if fields := strings.Split(strings.TrimSuffix(line, "\r"), ":"); len(fields) == 7 && fields[2] == uid {
				want = fields[6]
				break
			}
		}
		if got := findShell(strings.NewReader(passwd), uid); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// The environment for a user has each variable once, the values of the account, and no variable of
// sudo.
func FuzzEnv(f *testing.F) {
	f.Add("HOME=/root\x00SUDO_UID=1\x00PATH=/sbin\x00TERM=x\x00TERM=y",
		"PATH=/home/me/bin\x00LD_LIBRARY_PATH=/opt\x00SUDO_X=1\x00HOME=/else")
	f.Add("\x00=\x00==x\x00A", "=B\x00\x00A=1")
	f.Fuzz(func(t *testing.T, own, theirs string) {
		u := &User{
			UID: 1, GID: 1, Name: "me", Home: "/home/me", Shell: "/bin/sh",
			environ: strings.Split(theirs, "\x00"),
		}
		values := map[string]string{}
		for _, kv := range u.Env(strings.Split(own, "\x00")) {
			name, value, ok := strings.Cut(kv, "=")
			if _, twice := values[name]; !ok || twice || strings.HasPrefix(name, "SUDO_") {
				t.Errorf("variable %q, want no malformed or repeated one, and none of sudo", kv)
			}
			values[name] = value
		}
		account := map[string]string{"HOME": "/home/me", "USER": "me", "LOGNAME": "me", "SHELL": "/bin/sh"}
		for name, want := range account {
			if values[name] != want {
				t.Errorf("%s = %q, want %q", name, values[name], want)
			}
		}
		if path, ok := lookup(u.environ, "PATH"); ok && values["PATH"] != path {
			t.Errorf("PATH = %q, want %q", values["PATH"], path)
		}
	})
}
