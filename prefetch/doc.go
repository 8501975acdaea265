// Package prefetch keeps the right bytes of a model file in memory for a llama.cpp that does not know of it.
//
// Decoding is a cyclic scan: every token reads the same weights in the same order. A cache that is smaller than the
// cycle and evicts what was used least recently keeps nothing that is needed next. So a share of the weights is held in memory,
// spread evenly over the file, and the rest is streamed: read into the page cache just before its use, paged out just behind it.
// That reaches M - R bytes per token, Belady's minimum, less the window that is under way.
//
// It has three parts. The planner ([Schedule], [Strategy]) is pure: a cycle, the room and what is held now give a plan. The control loop
// ([Controller]) learns cycles from the target's events, or begins with one that is stored or guessed. It follows the target, first
// through its load, and carries plans out; its clock is injected. [Pages] are the levers on the page
// cache: [KernelPages] has the kernel's, package sim has them in virtual time, where the loop is tested.
//
// The package takes events of package event; it does not know how they are captured.
//
// Everything runs in the one goroutine that calls Controller's methods; none of its types is safe for concurrent use.
package prefetch
