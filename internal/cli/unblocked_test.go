package cli

// This file tests writes to a pipe that nobody reads.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Text that is read arrives complete, also after the context's end. Text that nobody reads does not
// block the writer forever.
func TestUnblocked(t *testing.T) {
	for name, read := range map[string]bool{"read": true, "not read": false} {
		t.Run(name, func(t *testing.T) {
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil { // blocking, as a shell's pipes are
				t.Fatal(err)
			}
			r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
			defer r.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := Unblocked(ctx, w)
			text := bytes.Repeat([]byte("0123456789abcde\n"), 1<<14) // 256 KiB; a pipe holds 64 KiB
			got := make(chan []byte, 1)
			if read {
				go func() {
					time.Sleep(100 * time.Millisecond) // let the writer wait for a while
					all, err := io.ReadAll(r)
					if err != nil {
						t.Error(err)
					}
					got <- all
				}()
			} else {
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			n, err := out.Write(text)
			if read {
				cancel()
				_, again := out.Write([]byte("end"))
				if err := errors.Join(err, again, w.Close()); err != nil || n != len(text) {
					t.Errorf("%d bytes written, %v; want %d", n, err, len(text))
				}
				if all := <-got; string(all) != string(text)+"end" {
					t.Errorf("%d bytes arrived, want %d", len(all), len(text)+len("end"))
				}
				return
			}
			if !errors.Is(err, ErrNotRead) || n >= len(text) {
				t.Errorf("%d bytes written, error %v; want less than %d, %v", n, err, len(text), ErrNotRead)
			}
			if n, err := out.Write(text); n != 0 || !errors.Is(err, ErrNotRead) {
				t.Errorf("a later write: %d bytes, error %v; want 0, %v", n, err, ErrNotRead)
			}
			w.Close()
		})
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	if _, err := Unblocked(t.Context(), w).Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("without a reader: error %v, want EPIPE", err)
	}
}
