package config

// This file reads YAML whose parts have parts into a struct, as strictly as settings are read.

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Decode reads a file's content into the struct that into points to. where is the file's path, for errors.
//
// The keys of a mapping are the names that the struct's fields have in their yaml tags; a field without one has no key.
// A field is a text, a number, a bool, an [encoding.TextUnmarshaler], a struct, a pointer to a struct, or a slice of
// these. Instead of a list with one value the value alone may stand. What the file does not say stays as it is. An
// unknown key, a key that is there twice, one without a value, an alias and a value of another form are errors; an
// unknown key's error names the nearest one that there is. The error joins a [*Problem] for each thing that is wrong;
// what into holds is then not to be used. Decode panics if a field is of another type.
func Decode(where string, data []byte, into any) error {
	d := decoder{parser{where: where}}
	document := d.readOne(data)
	if document == nil {
		return errors.Join(d.problems...)
	}
	if top := document.Content[0]; !isNull(top) { // there are more than comments
		d.decode(top, "the file", reflect.ValueOf(into).Elem())
	}
	return errors.Join(d.problems...)
}

type decoder struct{ parser }

// decode reads a part of the file into v. name is the key that the part belongs to.
func (d *decoder) decode(n *yaml.Node, name string, v reflect.Value) {
	if isNull(n) {
		d.refuse(n, "%s has no value: write one, or remove the line", name)
		return
	}
	_, isText := v.Addr().Interface().(encoding.TextUnmarshaler)
	switch {
	case isText:
		d.decodeScalar(n, name, v)
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.decode(n, name, v.Elem())
	case v.Kind() == reflect.Struct:
		d.decodeStruct(n, name, v)
	case v.Kind() == reflect.Slice:
		elements := []*yaml.Node{n}
		if n.Kind == yaml.SequenceNode {
			elements = n.Content
		}
		v.Set(reflect.MakeSlice(v.Type(), len(elements), len(elements)))
		for i, element := range elements {
			d.decode(element, name, v.Index(i))
		}
	default:
		d.decodeScalar(n, name, v)
	}
}

func (d *decoder) decodeStruct(n *yaml.Node, name string, v reflect.Value) {
	fields, names := map[string]int{}, []string{}
	for i := range v.NumField() {
		if key := v.Type().Field(i).Tag.Get("yaml"); key != "" {
			fields[key], names = i, append(names, key)
		}
	}
	d.readPairs(n, fmt.Sprintf("lines such as %s: VALUE in %s", names[0], name), func(key, value *yaml.Node) {
		i, known := fields[key.Value]
		if !known {
			d.refuse(key, "unknown key %q: %s", key.Value, suggest(key.Value, names))
			return
		}
		d.decode(value, key.Value, v.Field(i))
	})
}

// forms says what a value of a kind is, for people.
var forms = map[reflect.Kind]string{
	reflect.String: "a text", reflect.Int: "a whole number", reflect.Float64: "a number", reflect.Bool: "true or false",
}

func (d *decoder) decodeScalar(n *yaml.Node, name string, v reflect.Value) {
	into := v.Addr().Interface()
	text, isText := into.(encoding.TextUnmarshaler)
	form := forms[v.Kind()]
	if isText {
		form = "one value"
	} else if form == "" {
		panic(fmt.Sprintf("config: %s is of type %s", name, v.Type()))
	}
	switch {
	case n.Kind != yaml.ScalarNode:
		d.refuse(n, "%s: want %s, not %s", name, form, describe(n))
	case isText:
		if err := text.UnmarshalText([]byte(n.Value)); err != nil {
			d.refuse(n, "%s %q: %s", name, n.Value, err)
		}
	case v.Kind() == reflect.String:
		v.SetString(n.Value) // whatever else it could be: 0.85 is a name, too
	default:
		// The library takes 1.5 for an int, too.
		if err := n.Decode(into); err != nil || v.Kind() == reflect.Int && n.ShortTag() != "!!int" {
			d.refuse(n, "%s: want %s, not %q", name, form, strings.TrimSpace(n.Value))
		}
	}
}
