// Package processes finds the processes that compute with ggml: all of a machine, those of a name, or those that a
// process has started.
//
// A process is known by what it maps, not by what it or a file is called: code that names ggml's functions, and files
// that begin as a GGUF file does. A name only selects among such processes. A process is selected if its own name is
// the one that is asked for, or the name of one above it. So a server that starts others to compute for it stands for
// these: a llama-server with a directory of models, or an Ollama.
package processes
