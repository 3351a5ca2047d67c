package main

import (
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// store is an informer that is never run: replace sets its objects, and has notified its handlers when it returns.
//
// Watching a fake clientset gives the plug-ins the same view, but takes a few goroutines and milliseconds per case, and a wait of
// unknown length until caches that listen to informers have caught up.
type store struct {
	cache.SharedIndexInformer
	handlers []cache.ResourceEventHandler
	version  int
}

type registration struct{}

func (registration) HasSynced() bool { return true }

func (s *store) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, handler)
	return registration{}, nil
}

func (s *store) HasSynced() bool { return true }

// replace deletes all objects of the store and adds objects instead.
func (s *store) replace(objects []runtime.Object) error {
	indexer := s.GetIndexer()
	for _, old := range indexer.List() {
		for _, handler := range s.handlers {
			handler.OnDelete(old)
		}
	}
	items := make([]any, len(objects))
	for i, object := range objects {
		access, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		// Assume caches compare resource versions as numbers.
		s.version++
		access.SetResourceVersion(strconv.Itoa(s.version))
		items[i] = object
	}
	if err := indexer.Replace(items, ""); err != nil {
		return err
	}
	for _, item := range items {
		for _, handler := range s.handlers {
			handler.OnAdd(item, true)
		}
	}
	return nil
}

// world is everything that plug-ins read through informers.
type world struct {
	factory informers.SharedInformerFactory
	namespaces, volumes, claims, classes,
	csiNodes, csiDrivers, capacities, attachments *store
}

func newWorld(client kubernetes.Interface) *world {
	w := &world{factory: informers.NewSharedInformerFactory(client, 0)}
	w.namespaces = w.take(&v1.Namespace{})
	w.volumes = w.take(&v1.PersistentVolume{})
	w.claims = w.take(&v1.PersistentVolumeClaim{})
	w.classes = w.take(&storagev1.StorageClass{})
	w.csiNodes = w.take(&storagev1.CSINode{})
	w.csiDrivers = w.take(&storagev1.CSIDriver{})
	w.capacities = w.take(&storagev1.CSIStorageCapacity{})
	w.attachments = w.take(&storagev1.VolumeAttachment{})
	return w
}

// take registers a store as the factory's informer for one type, before any plug-in requests it.
func (w *world) take(object runtime.Object) *store {
	var s *store
	w.factory.InformerFor(object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		s = &store{SharedIndexInformer: cache.NewSharedIndexInformer(nil, object, 0, indexers)}
		return s
	})
	return s
}

func (w *world) load(c *Case) error {
	loads := []func() error{
		func() error { return w.namespaces.replace(objects(c.Namespaces)) },
		func() error { return w.classes.replace(objects(c.StorageClasses)) },
		func() error { return w.volumes.replace(objects(c.PersistentVolumes)) },
		func() error { return w.claims.replace(objects(c.PersistentVolumeClaims)) },
		func() error { return w.csiNodes.replace(objects(c.CSINodes)) },
		func() error { return w.csiDrivers.replace(objects(c.CSIDrivers)) },
		func() error { return w.capacities.replace(objects(c.CSIStorageCapacities)) },
		func() error { return w.attachments.replace(objects(c.VolumeAttachments)) },
	}
	for _, load := range loads {
		if err := load(); err != nil {
			return err
		}
	}
	return nil
}

func objects[T runtime.Object](items []T) []runtime.Object {
	result := make([]runtime.Object, len(items))
	for i, item := range items {
		result[i] = item
	}
	return result
}
