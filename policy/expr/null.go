package expr

import (
	"math"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// absentIsNull makes the absent key of a map read as null, at any depth: `==` with it is false, `!=` true, ordering it or
// calling a method on it is an evaluation error. Presence tests are left as they are.
//
// CEL reads `a.b.c` as one attribute with qualifiers; each qualifier is wrapped as it is added. One decorator serves one
// program, because an attribute comes by once for each of its qualifiers and must be wrapped once only.
func absentIsNull() interpreter.InterpretableDecoratorV2 {
	wrapped := map[interpreter.Attribute]bool{}
	return func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		attr, ok := i.(interpreter.InterpretableAttribute)
		if !ok || wrapped[attr.Attr()] {
			return i, nil
		}
		wrapped[attr.Attr()] = true
		return &nullAttribute{attr}, nil
	}
}

type nullAttribute struct {
	interpreter.InterpretableAttribute
}

// AddQualifier appends the qualifier, wrapped.
func (a *nullAttribute) AddQualifier(q interpreter.Qualifier) (interpreter.Attribute, error) {
	return a.InterpretableAttribute.AddQualifier(&nullQualifier{q})
}

type nullQualifier struct {
	interpreter.Qualifier
}

// Qualify returns null for a key that the map lacks, and for any key of null.
func (q *nullQualifier) Qualify(vars interpreter.Activation, obj any) (any, error) {
	value, err := q.Qualifier.Qualify(vars, obj)
	if err == nil {
		return value, nil
	}
	if isNull(obj) {
		return types.NullValue, nil
	}
	if !isMap(obj) {
		return nil, err
	}
	// The key may also be of a kind that no map has; that is an error here too.
	if _, present, errPresent := q.Qualifier.QualifyIfPresent(vars, obj, false); errPresent != nil || present {
		return nil, err
	}
	return types.NullValue, nil
}

func isNull(obj any) bool {
	if obj == nil {
		return true
	}
	_, ok := obj.(types.Null)
	return ok
}

func isMap(obj any) bool {
	switch obj.(type) {
	case map[string]any, map[string]string, traits.Mapper:
		return true
	default:
		return false
	}
}

// numbersMix lets whole numbers and fractions meet in arithmetic. Numbers from JSON are doubles, literals such as 3 are
// ints, and CEL refuses to add the two; written out, `result.value * 100` would be an error. Division of two JSON
// numbers stays a fraction, so that `result.errors / result.total` is never rounded down to 0.
func numbersMix(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok || len(call.Args()) != 2 {
		return i, nil
	}
	function := call.Function()
	switch function {
	case operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo:
	default:
		return i, nil
	}
	compute := func(args ...ref.Val) ref.Val { return arithmetic(function, args[0], args[1]) }
	return interpreter.NewCall(call.ID(), function, call.OverloadID(), call.Args(), compute), nil
}

func arithmetic(function string, l, r ref.Val) ref.Val {
	if isNumber(l) && isNumber(r) {
		if function == operators.Modulo {
			l, r = whole(l), whole(r)
		} else if l.Type() != r.Type() {
			l, r = l.ConvertToType(types.DoubleType), r.ConvertToType(types.DoubleType)
		}
	}
	if left, ok := l.(traits.Adder); ok && function == operators.Add && l.Type().HasTrait(traits.AdderType) {
		return left.Add(r)
	}
	if left, ok := l.(traits.Subtractor); ok && function == operators.Subtract && l.Type().HasTrait(traits.SubtractorType) {
		return left.Subtract(r)
	}
	if left, ok := l.(traits.Multiplier); ok && function == operators.Multiply && l.Type().HasTrait(traits.MultiplierType) {
		return left.Multiply(r)
	}
	if left, ok := l.(traits.Divider); ok && function == operators.Divide && l.Type().HasTrait(traits.DividerType) {
		return left.Divide(r)
	}
	if left, ok := l.(traits.Modder); ok && function == operators.Modulo && l.Type().HasTrait(traits.ModderType) {
		return left.Modulo(r)
	}
	return types.NewErr("no such overload: %s", function)
}

func isNumber(v ref.Val) bool {
	switch v.(type) {
	case types.Int, types.Uint, types.Double:
		return true
	default:
		return false
	}
}

// whole turns a number without a fraction into an int, for the remainder of a division.
func whole(v ref.Val) ref.Val {
	switch n := v.(type) {
	case types.Double:
		if float64(n) == math.Trunc(float64(n)) && math.Abs(float64(n)) < 1<<53 {
			return types.Int(n)
		}
	case types.Uint:
		if n <= math.MaxInt64 {
			return types.Int(n)
		}
	}
	return v
}
