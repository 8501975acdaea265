// Package pattern finds out what a language model reads of its weights for each token, and whether
// that is the same for every token.
//
// # Words
//
// A step is one llama_decode call. It processes a batch of tokens, which is a single one where text
// is generated. An op is one node of ggml's compute graph, such as a matrix multiplication. A read
// is one op reading one weight (a tensor of the model file), so an op with two weights makes two
// reads. A step's sequence is the list of its reads in the order of execution. Two sequences are
// equal if they have the same tensor, op and bytes at each position.
//
// Two things depend on data and are not part of a sequence: which experts an op selects (they are
// compared separately, see [Experts]), and which rows of the embedding it gathers. The number of
// their bytes is part of the sequence, unless the step generates tokens of several sequences at
// once, because these may share rows and experts.
//
// Where nothing is generated, as for embeddings or a perplexity, the steps of the prompts are compared
// instead, and figures are per step. A step of a large batch goes through the model several times. Each
// of these passes begins with the same read, and is compared with a token's step.
//
// # Two ways to the same result
//
// [Build] makes a [Pattern] from a capture: all steps of one llama_context with one model, the
// reference sequence (that of most generated tokens), and the steps that depart from it. It serves
// analyses after the run. A capture may hold several contexts.
//
// A [Cycle] is all that matters for the next token: the reads of one token, with their offsets in
// the model's files and the time that each op computes. [Pattern.Cycle] takes it from a capture.
// [Builder] learns it from a running target's events. For the same run both give the same result.
// [Cycle.Write] and [ReadCycle] keep it in a file (pattern.json). [Guess] makes one for a model
// that was never seen running.
package pattern
