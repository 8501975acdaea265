// Package pattern says what a language model reads of its weights for each token, and whether that
// is the same for every token.
//
// # Words
//
// A step is one llama_decode call: it processes a batch of tokens, a single one where text is
// generated. An op is one node of ggml's compute graph, such as a matrix multiplication. A read is
// one op reading one weight (a tensor of the model file), so an op with two weights makes two
// reads. A step's sequence is the list of its reads in the order of execution. Two sequences are
// equal when they have the same (tensor, op, bytes) at each position.
//
// What depends on data is not part of a sequence: which experts an op selects (compared apart, see
// [Experts]), and which rows of the embedding it gathers. How many bytes they come to is part of
// it, unless the step generates tokens of several sequences at once, which may share rows and
// experts.
//
// # Two ways to the same result
//
// [Build] makes a [Pattern] of a capture: all steps of one llama_context with one model, the
// reference sequence (that of most generated tokens), and the steps that depart from it. It is for
// analyses after the run; a capture may hold several contexts.
//
// A [Cycle] is what is left when only the next token matters: the reads of one token, with their
// places in the model's files and the time that each op computes. [Pattern.Cycle] takes it from a
// capture, [Builder] learns it from a running target's events, and of the same run they tell the
// same. [Cycle.Write] and [ReadCycle] keep it in a file (pattern.json). [Guess] makes one of a
// model that nobody has seen running.
package pattern
