package ledgertest

import (
	"context"
	"testing"
)

func TestMemory(t *testing.T) {
	Run(t, func(*testing.T) Open {
		m := NewMemory()
		return func(ctx context.Context) (Store, error) { return m, ctx.Err() }
	})
}
