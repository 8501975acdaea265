package device

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// TestNapEndsForCollector: Go's collector stops all goroutines. One that naps keeps its P, but a signal ends
// the nap, so that the collector need not wait.
func TestNapEndsForCollector(t *testing.T) {
	var w atomic.Uint32
	begun, over := time.Now(), make(chan struct{})
	go func() {
		defer close(over)
		futexNap(&w, 0, time.Minute)
	}()
	for ended := false; !ended; time.Sleep(time.Millisecond) { // again and again, as the nap may not have begun
		runtime.GC()
		select {
		case <-over:
			ended = true
		default:
		}
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the nap ended after %v, want less than 30s", took)
	}
}
