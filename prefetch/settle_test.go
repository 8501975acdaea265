package prefetch

import (
	"path/filepath"
	"testing"
)

// Without a systemd that answers, no service is joined; what is no service is.
func TestFragile(t *testing.T) {
	bus := "unix:path=" + filepath.Join(t.TempDir(), "none")
	for group, want := range map[string]string{
		"/":                                   "",
		"/jobs/llama":                         "",
		"/system.slice/a.service":             "/system.slice/a.service",
		"/system.slice/a.service/worker":      "/system.slice/a.service",
		"/u.slice/user@1.service/x/b.service": "/u.slice/user@1.service/x/b.service",
		"/--host=evil.service":                "/--host=evil.service",
		"/run-1.scope":                        "/run-1.scope",
	} {
		if unit, err := fragile(t.Context(), bus, group); unit != want || (err != nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", group, unit, err, want)
		}
	}
}
