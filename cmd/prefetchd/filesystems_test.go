package main

// This file tests help for models on the file systems on which people keep them.

import (
	"strings"
	"testing"

	"tensorcast/experiments/llama/llamatest"
	"tensorcast/internal/cli"
	"tensorcast/internal/testenv"
)

// Wherever a model lies on a disk, doctor sees that it is in memory and can measure it, the text is the same with help,
// and no more is read for a token than on ext4. On FUSE somewhat more is: there Linux skips a part of what is asked for
// ahead. On tmpfs there is nothing to do.
func TestFileSystems(t *testing.T) {
	testenv.NeedRoot(t)
	from := llamatest.Model(t, model)
	const tokens = 20
	perToken := map[string]int64{}
	for _, name := range testenv.FileSystems {
		t.Run(name, func(t *testing.T) {
			path := testenv.Mount(t, name, from) + from[strings.LastIndex(from, "/"):]
			r := newDenseRig(t, "dense", path, 0.5, tokens)
			r.options.Repeat = 2
			if name == "tmpfs" {
				// Until prefetchd has found out that there is nothing to do.
				r.options.Repeat, r.options.Pause = 1000, 20
			}
			r.start()
			h := r.help()
			d, _ := diagnosisOf(t, r.target.Process.Pid)
			if len(d.Holding.Files) != 1 {
				t.Fatalf("doctor sees %d files, want 1: %+v", len(d.Holding.Files), d.Holding)
			}
			f := d.Holding.Files[0]
			if f.Changed || f.Path != path || f.Resident <= 0 || f.Resident > f.Size+1<<20 {
				t.Errorf("doctor says %+v, want a part of %s to be resident", f, path)
			}
			if name == "tmpfs" {
				testenv.WaitFor(t, "prefetchd to be idle", func() bool {
					return strings.Contains(h.stderr.String(), "prefetchd: idle: ")
				})
				if err := r.target.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = r.target.Wait()
				s := h.summary(t)
				if !strings.Contains(s.Idle, "tmpfs") || s.Streamed != 0 {
					t.Errorf("streamed %d bytes, idle %q; want none, because it is in memory\n%s", s.Streamed, s.Idle,
						h.stderr.String())
				}
				return
			}
			r.finish()
			s := h.summary(t)
			if s.Tokens == 0 {
				t.Fatalf("no token was helped: %+v", s)
			}
			perToken[name] = s.Streamed / int64(s.Tokens)
			want := perToken["ext4"] * 3 / 2 // asked of the overlay itself, it would be the triple
			if name == "bindfs" {
				want *= 2
			}
			if want > 0 && perToken[name] > want {
				t.Errorf("%d bytes are read ahead for each token, want %d at most (ext4: %d)", perToken[name], want, perToken["ext4"])
			}
			dropFromCache(t, path)
			stdout, stderr, status := doctor(t, nil, "--costs", "--model", path)
			if status != cli.OK || stderr != "" || !strings.HasPrefix(stdout, "costs of reading "+path) {
				t.Errorf("doctor --model: status %d: %s%s", status, stdout, stderr)
			}
		})
	}
	t.Logf("bytes read ahead for each token: %v", perToken)
}
