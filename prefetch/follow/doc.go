// Package follow knows where a target is: which of its contexts decodes, and how far that one has come in its
// cycle.
//
// A [Cursor] is the position in a cycle, token after token. [Contexts] tells the llama_contexts of a target
// apart, each with a cycle of its own, and says which of them is followed.
//
// Nothing here is safe for concurrent use.
package follow
