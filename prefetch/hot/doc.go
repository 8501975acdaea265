// Package hot says which experts of a mixture are likely to be chosen before its routers have chosen any.
//
// A [Store] keeps, in a small file for each model, how often the last run chose each expert. [ReadImatrix] takes the
// same from an importance matrix, in which llama.cpp's llama-imatrix counts choices.
//
// Nothing that such a file says is believed before it is checked: what is wrong with it is an error, and a model whose
// experts are not those of the file has no scores. Scores only decide what is read first, so wrong ones cost time, and
// never change what a target computes.
package hot
