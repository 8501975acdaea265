package device

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// Go's collector stops all goroutines. One that naps keeps its P, but a signal ends the nap: the collector does
// not wait for it.
func TestNapEndsForCollector(t *testing.T) {
	var w atomic.Uint32
	begun, over := time.Now(), make(chan struct{})
	go func() {
		defer close(over)
		futexNap(&w, 0, time.Minute)
	}()
	for ended := false; !ended; time.Sleep(time.Millisecond) { // again and again, as it may not nap yet
		runtime.GC()
		select {
		case <-over:
			ended = true
		default:
		}
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
