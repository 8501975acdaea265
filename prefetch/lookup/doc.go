// Package lookup helps with tables of which a token reads only the rows that it looks up: token embeddings, and
// embeddings of tokens for each layer. A table may be many times as large as all the rest of a model.
//
// A table is neither kept nor streamed. When a batch is about to look up its rows, those that are not in memory are
// read at once, beside each other, before the target touches them one after the other. The rows that were used last
// stay, in a few mebibytes. Everything else of a table that is in memory is paged out: rows of long ago, and what a
// fault of the target has read around a row. It would take the room of what every token reads.
//
// Nothing here is safe for concurrent use.
package lookup
