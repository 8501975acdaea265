package device

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// Go's collector stops all goroutines. One that naps keeps its P, but a signal ends the nap: the collector does not wait for it.
func TestNapEndsForCollector(t *testing.T) {
	var w atomic.Uint32
	begun, over := time.Now(), make(chan struct{})
	go func() {
		defer close(over)
		nap(&w, 0, time.Minute)
	}()
	time.Sleep(10 * time.Millisecond) // it naps now, most likely; if not, it will soon
	runtime.GC()
	<-over
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}
