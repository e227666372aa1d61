"""Redirects a loaded shared object's calls of a function that it imports.

A shared object calls imported functions through its global offset table (GOT), which the dynamic
linker fills in. Replacing an entry redirects the calls of this one object, without a compiler and
without LD_PRELOAD. Supports 64-bit Linux on x86-64 and aarch64; the layout of the tables follows
the ELF specification.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from typing import NamedTuple

from distrl.runtime.posix import LIBC

# By machine: the types of relocations whose target is a function's address: 64-bit word, GLOB_DAT,
# JUMP_SLOT.
_RELOCATIONS = {"x86_64": {1, 6, 7}, "aarch64": {257, 1025, 1026}}
_PT_DYNAMIC, _PT_GNU_RELRO = 2, 0x6474E552
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_HEADER = struct.Struct(
    "=IIQQQQQQ"
)  # type, flags, offset, address, -, file size, memory size, align
_DYNAMIC = struct.Struct("=qQ")  # tag, value
_RELA = struct.Struct("=QQq")  # target, symbol << 32 | type, addend
_SYMBOL_SIZE = 24  # a symbol begins with its name's offset, 4 bytes
_PROT_READ, _PROT_WRITE = mmap.PROT_READ, mmap.PROT_WRITE


class SharedObject(NamedTuple):
    """A loaded shared object.

    Attributes:
      path: path of its file, with links resolved.
      base: offset between the addresses in its file and in memory.
      dynamic: address of its dynamic section; 0: it has none.
      read_only: the address range that became read-only after loading: first, last + 1.
    """

    path: str
    base: int
    dynamic: int
    read_only: tuple[int, int]


class _Info(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
    )


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_size_t, ctypes.c_void_p)


def is_supported() -> bool:
    """Returns whether this machine's tables can be read."""
    known_machine = platform.system() == "Linux" and platform.machine() in _RELOCATIONS
    return (
        known_machine and ctypes.sizeof(ctypes.c_void_p) == 8 and hasattr(LIBC, "dl_iterate_phdr")
    )


def loaded() -> list[SharedObject]:
    """Returns the shared objects of this process, without the main program."""
    entries: list[tuple[int, bytes, bytes]] = []

    def visit(info: "ctypes._Pointer[_Info]", size: int, data: int | None) -> int:
        entry = info.contents
        headers = ctypes.string_at(entry.headers, _HEADER.size * entry.count)
        entries.append((entry.base, entry.name or b"", headers))
        return 0

    LIBC.dl_iterate_phdr(_Visit(visit), None)
    return [_shared_object(*entry) for entry in entries if entry[1]]


def _shared_object(base: int, name: bytes, headers: bytes) -> SharedObject:
    dynamic, read_only = 0, (0, 0)
    for kind, _, _, address, _, _, size, _ in _HEADER.iter_unpack(headers):
        if kind == _PT_DYNAMIC:
            dynamic = base + address
        elif kind == _PT_GNU_RELRO:  # the rest of its last page stays writable
            read_only = (base + address, (base + address + size) & -mmap.PAGESIZE)
    return SharedObject(os.path.realpath(os.fsdecode(name)), base, dynamic, read_only)


def slots(shared: SharedObject, function: str) -> list[int]:
    """Returns the addresses of the object's GOT entries for a function.

    Args:
      shared: the shared object.
      function: name of the function. Without an import of it there are no entries.
    """
    if not shared.dynamic:
        return []
    entries = dict(_dynamic_section(shared.dynamic))

    def address(tag: int) -> int:
        value = entries.get(tag, 0)  # glibc adds the base when it loads the object, others do not
        return value + shared.base if 0 < value < shared.base else value

    symbols, names = address(_DT_SYMTAB), address(_DT_STRTAB)
    addresses = set()
    for table, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        relocations = ctypes.string_at(address(table), entries.get(size, 0))
        for target, info, _ in _RELA.iter_unpack(relocations):
            if info & 0xFFFFFFFF not in _RELOCATIONS[platform.machine()]:
                continue
            symbol = symbols + _SYMBOL_SIZE * (info >> 32)
            name = ctypes.string_at(names + ctypes.c_uint32.from_address(symbol).value)
            if name == function.encode():
                addresses.add(shared.base + target)
    return sorted(addresses)


def _dynamic_section(address: int) -> Iterator[tuple[int, int]]:
    while True:
        tag, value = _DYNAMIC.unpack(ctypes.string_at(address, _DYNAMIC.size))
        if tag == 0:
            return
        yield tag, value
        address += _DYNAMIC.size


def replace(shared: SharedObject, slot: int, value: int) -> int:
    """Writes an address to a GOT entry and returns the previous one. Raises OSError.

    Args:
      shared: the shared object.
      slot: address of the entry, from `slots`.
      value: the new address.
    """
    first, last = shared.read_only
    with _writable(slot) if first <= slot < last else contextlib.nullcontext():
        entry = ctypes.c_uint64.from_address(slot)
        previous, entry.value = entry.value, value
    return previous


@contextlib.contextmanager
def _writable(address: int) -> Iterator[None]:
    page = ctypes.c_void_p(address & -mmap.PAGESIZE)
    length = ctypes.c_size_t(mmap.PAGESIZE)
    _protect(page, length, _PROT_READ | _PROT_WRITE)
    try:
        yield
    finally:
        _protect(page, length, _PROT_READ)


def _protect(page: ctypes.c_void_p, length: ctypes.c_size_t, protection: int) -> None:
    if LIBC.mprotect(page, length, protection):
        error = ctypes.get_errno()
        raise OSError(error, f"mprotect: {os.strerror(error)}")
