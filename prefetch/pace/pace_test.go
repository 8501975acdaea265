package pace

// This file tests that memory is measured within the memory that there is, and that measuring ends.

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Memory is slower than a cache, and both are faster than any disk.
func TestMeasure(t *testing.T) {
	r, err := NewReader(2, 4*64<<20)
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.Measure(t.Context(), 30*time.Millisecond)
	if err != nil || p.Threads != 2 || p.Memory < 1e8 || p.Memory > 1e13 || p.Products < 1e8 || p.Products > 1e12 ||
		p.Share <= 0 || p.Share > 1.01 {
		t.Errorf("%+v, %v", p, err)
	}
	rate, err := r.Beside(t.Context(), 1, func(context.Context) error {
		time.Sleep(30 * time.Millisecond)
		return nil
	})
	if err != nil || rate < 1e8 || rate > 1e13 {
		t.Errorf("beside a sleeper %g bytes per second, %v", rate, err)
	}
	failed := errors.New("the disk is gone")
	if _, err := r.Beside(t.Context(), 1, func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v, want %v", err, failed)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := r.Measure(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was cancelled", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// No more than a quarter of what is to spare is taken.
func TestSpare(t *testing.T) {
	if _, err := NewReader(1, 4*minBytes-1); !errors.Is(err, ErrMemory) {
		t.Errorf("%v, want %v", err, ErrMemory)
	}
	r, err := NewReader(1, 4*minBytes)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.rows) * floatSize; n != minBytes {
		t.Errorf("%d bytes, want %d", n, minBytes)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
