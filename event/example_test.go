package event_test

// This file has the examples of the package's documentation.

import (
	"fmt"

	"tensorcast/event"
)

// A capturer counts what it could not report. A capture without losses has everything that the
// target did.
func ExampleCounters() {
	c := event.Counters{Hits: 1000, OtherThreads: 500, NoWeight: 200, OpsSent: 290, Received: 290, OpsLost: 10}
	fmt.Println(c.Filtered(), "of", c.Hits, "hits read no weight, or were not on thread 0")
	fmt.Println(c.Lost(), "lost")
	// Output:
	// 700 of 1000 hits read no weight, or were not on thread 0
	// 10 lost
}

// A program whose decodes are not seen has derived steps. A step ends when the next one begins.
func ExampleDerivedSteps() {
	print := func(e event.Event) error {
		switch e := e.(type) {
		case event.DecodeBegin:
			fmt.Println("step", e.Decode, "of", e.Tokens, "tokens")
		case event.DecodeEnd:
			fmt.Println("end of", e.Decode)
		}
		return nil
	}
	steps := event.DerivedSteps{PID: 42}
	for _, tokens := range []int{5, 1} {
		if err := steps.Begin(43, 0, tokens, print); err != nil {
			fmt.Println(err)
		}
	}
	if err := steps.End(print); err != nil {
		fmt.Println(err)
	}
	// Output:
	// step 1 of 5 tokens
	// end of 1
	// step 2 of 1 tokens
	// end of 2
}
