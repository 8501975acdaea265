// Package confine has what several instruments share that run a llama.cpp in less memory than its
// model: commands that enter a memory control group ([In]), and the model's pages in the page cache
// ([Model]). It also measures the two amounts from which a limit follows, limit = x * M + own
// memory: what a token reads of the model ([TraceWeights]), and what the target needs besides
// ([OwnMemory]).
//
// Amounts are bytes. Most of it needs root.
package confine
