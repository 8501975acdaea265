// Package plan decides what of a model is held in memory and what is streamed, and says what can be expected
// of that.
//
// A [Schedule] is what one token reads, cut into blocks. A [Strategy] shares the room between blocks that are
// held and a window through which the others are streamed. [Schedule.ExpectToken] simulates a token with such
// a plan.
//
// The package is pure: the same input gives the same result, nothing is asked of the kernel, and nothing is
// touched. Its functions are safe for concurrent use, as long as nobody changes their arguments.
package plan
